# shellcheck shell=bash
# What tests of the program's commands share: source it with FOLDER_OF_THE_TEST_PROGRAMS. Works in a
# new folder with a tiny job.textproto, a training and a validation file. The first failure ends the
# test. In the environment: TESTED_PROGRAM, another program than the build's; TESTED_DEVICE, the jobs'
# where it is not the CPU.
set -u
program=${TESTED_PROGRAM:-$(realpath "$1/../twinstream")}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
output=$folder/output
launcher=(mpirun)

cat >job.textproto <<JOB
name: "tiny"
model { residual: SIAMESE_HYBRID_PRE layers: 2 hidden: 16 heads: 2 ffn: 24 vocabulary: 256 sequence: 8 }
data { train { path: "tokens.bin" } validation { path: "validation.bin" } }
optimizer { schedule: CONSTANT peak_lr: 1e-2 }
train { steps: 6 global_batch: 4 eval_every: 3 eval_batches: 1000 device: ${TESTED_DEVICE:-CPU} }
checkpoint { every_steps: 3 }
JOB
python3 - <<'PYTHON'
import random

generator = random.Random(1)
for path, tokens in (("tokens.bin", 2001), ("validation.bin", 13 * 8 + 1)):
    with open(path, "wb") as file:
        file.write(b"".join(bytes((generator.choice(b"abcdefgh"), 0)) for _ in range(tokens)))
PYTHON

fail() { # fail MESSAGE
  echo "FAILED: $*. The last output:"
  sed 's/^/    /' "$output"
  exit 1
}

# run EXIT_CODE RANKS ARGUMENTS...: the program on so many ranks ends with this code within a minute.
run() {
  local code=$1 ranks=$2
  shift 2
  local command=("${launcher[@]}" -np "$ranks" "$program" "$@")
  if [ "$ranks" = alone ]; then command=("$program" "$@"); fi
  timeout 60 "${command[@]}" >"$output" 2>&1
  local got=$?
  [ "$got" = "$code" ] || fail "$* on $ranks: exit code $got instead of $code"
}

says() { # says PATTERN: a line of the last run's output matches
  grep -Eq -- "$1" "$output" || fail "no line like: $1"
}

same() { # same WHAT ACTUAL EXPECTED
  [ "$2" = "$3" ] || fail "$1: $2 instead of $3"
}

close() { # close WHAT A B: two numbers within 1e-6 of each other
  python3 -c 'import sys; a, b = map(float, sys.argv[1:]); sys.exit(not abs(a - b) <= 1e-6)' \
    "$2" "$3" || fail "$1: $2 and $3"
}

# start NAME RANKS ARGUMENTS...: the program in the background; returns when runs/NAME has five
# steps. Sets mpirun_pid and rank_pid, one of the ranks'.
start() {
  local name=$1 ranks=$2
  shift 2
  "${launcher[@]}" --timeout 120 -np "$ranks" "$program" "$@" >"$output" 2>&1 &
  mpirun_pid=$!
  for _ in $(seq 600); do
    if [ -e "runs/$name/metrics.jsonl" ] && [ "$(wc -l <"runs/$name/metrics.jsonl")" -ge 5 ]; then
      # shellcheck disable=SC2034 # for the scripts that source this
      rank_pid=$(cat /proc/$mpirun_pid/task/*/children | xargs -n 1 | tail -n 1)
      return
    fi
    kill -0 "$mpirun_pid" 2>/dev/null || fail "$* ended before its fifth step"
    sleep 0.1
  done
  fail "$* has not done five steps in a minute"
}

ends_with() { # ends_with EXIT_CODE: what start began
  wait "$mpirun_pid"
  local got=$?
  [ "$got" = "$1" ] || fail "exit code $got instead of $1"
}

saved() { # saved NAME: its checkpoints' numbers
  find "runs/$1/checkpoints" -name 'step_*' -printf '%f\n' | sed 's/step_0*//' | sort -n | xargs
}

# The lines of metrics without what depends on the clock and the machine.
digits() { # digits NAME
  grep '"loss"' "runs/$1/metrics.jsonl" | sed 's/, "tokens_per_second".*//'
}

value() { # value FILE STEP KEY: the number as it stands in the last such line of metrics
  sed -n "s/^{\"step\": $2,.*\"$3\": \\([^,}]*\\).*/\\1/p" "$1" | tail -n 1
}
