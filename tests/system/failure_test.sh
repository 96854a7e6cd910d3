#!/bin/bash
# One failing rank ends the whole job within seconds, and somebody says why.
# Usage: failure_test.sh FOLDER_OF_THE_TEST_PROGRAMS
set -u
program=$1/failing_rank_program
output=$(mktemp)
trap 'rm -f "$output"' EXIT
failures=0

# expect HOW EXIT_CODE PATTERN [RANKS]: the job that fails HOW ends with EXIT_CODE within 20 s, and
# a line of its output matches PATTERN (if any).
expect() {
  local how=$1 code=$2 pattern=$3 ranks=${4:-3}
  if [ "$ranks" = alone ]; then
    timeout 20 "$program" "$how" >"$output" 2>&1
  else
    timeout 20 mpirun -np "$ranks" "$program" "$how" >"$output" 2>&1
  fi
  local got=$?
  if [ "$got" != "$code" ] || { [ -n "$pattern" ] && ! grep -Eq "$pattern" "$output"; }; then
    echo "FAILED: $how on $ranks: exit code $got, expected $code and a line like: $pattern"
    cat "$output"
    failures=$((failures + 1))
  fi
}

step='\(during step 3\)'
expect check 1 "^rank 1 \(stage 1\) on host [^ ]+: 5 rows do not divide over 2 ranks $step \[.*failing_rank_program.cc:[0-9]+\]$"
expect posted 1 "^rank 1 \(stage 1\) on host [^ ]+: 5 rows do not divide over 2 ranks \(during reduction of gradients\)"
expect exception 1 "^rank 1 \(stage 1\) on host [^ ]+: an exception that nobody caught: out of luck"
expect segfault 139 "^rank 1 \(stage 1\) on host [^ ]+: killed by a signal: Segmentation fault$"
expect kill 137 "^rank [02] \(stage [02]\) on host [^ ]+ was waiting in all-reduce over world for rank 1 \(stage 1\) on host [^ ]+ $step when it was told to end$"
expect hang 1 "^rank [02] \(stage [02]\) on host [^ ]+: waited 2 s in all-reduce over world for rank 1 \(stage 1\) on host [^ ]+ $step"
expect stop 3 ""
expect products 3 ""
expect check 1 "^rank 0 \(stage 0\) on host [^ ]+: 5 rows do not divide" alone
expect exception 1 "^rank 0 \(stage 0\) on host [^ ]+: an exception" alone
expect stop 3 "" alone
exit $((failures > 0))
