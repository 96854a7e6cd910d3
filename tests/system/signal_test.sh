#!/bin/bash
# SIGTERM and SIGINT end every command at once, while it waits for its job and while it computes.
# (Once `train` has its job it saves first: train_command_test.sh.)
# Usage: signal_test.sh FOLDER_OF_THE_TEST_PROGRAMS
# shellcheck source=tests/system/command_testing.sh
source "$(dirname "$0")/command_testing.sh"

mkfifo pipe

# begin RANKS ARGUMENTS...: the program in the background, with the signals that a terminal's
# programs have; sets program_pid.
begin() {
  local ranks=$1
  shift
  local command=("${launcher[@]}" -np "$ranks" "$program" "$@")
  if [ "$ranks" = alone ]; then command=("$program" "$@"); fi
  env --default-signal=INT "${command[@]}" >"$output" 2>&1 &
  program_pid=$!
}

dies_of() { # dies_of SIGNAL: what begin began
  kill -0 "$program_pid" || fail "it ended before the signal"
  kill "-$1" "$program_pid"
  for _ in $(seq 100); do
    if ! kill -0 "$program_pid" 2>/dev/null; then
      wait "$program_pid"
      local got=$?
      [ "$got" != 0 ] || fail "exit code 0 after SIG$1"
      return
    fi
    sleep 0.1
  done
  kill -KILL "$program_pid"
  fail "it goes on after SIG$1"
}

a_job_that_does_not_come_is_no_trap() {
  for arguments in "train pipe" "evaluate pipe --checkpoint=none" "verify pipe" "validate pipe"; do
    for signal in TERM INT; do
      # shellcheck disable=SC2086 # words
      begin alone $arguments
      exec 3>pipe # once the program reads
      dies_of $signal
      exec 3>&-
    done
  done
  begin 2 train pipe
  exec 3>pipe
  dies_of TERM
  exec 3>&-
}

computing_ends() { # computing_ends RANKS SIGNAL
  begin "$1" evaluate pipe --checkpoint=runs/tiny/checkpoints \
    --override='data { validation { path: "long.bin" } }'
  cat job.textproto >pipe
  sleep 1
  dies_of "$2"
}

a_job_that_does_not_come_is_no_trap
run 0 2 train job.textproto
truncate -s 100M long.bin
computing_ends alone TERM
computing_ends 2 INT
