#!/bin/bash
# train_benchmark says in one message what is wrong with its flags, variants and input (exit code 2).
# Usage: train_benchmark_test.sh FOLDER_OF_THE_TEST_PROGRAMS
set -u
program=$1/train_benchmark
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
output=$folder/output

# refuses MESSAGE ARGUMENTS...: all that it prints to stderr, but for the program's name, matches.
refuses() {
  local message=$1
  shift
  timeout 60 "$program" --shape=tiny "$@" >/dev/null 2>"$output"
  local got=$?
  if [ "$got" != 2 ] || ! [[ $(cat "$output") =~ ^train_benchmark:\ $message$ ]]; then
    echo "FAILED: $*: exit code $got, not 2, or not the message $message:"
    cat "$output"
    exit 1
  fi
}

refuses '--rounds = 0: it must be from 1 to 1000000' --rounds=0
refuses '--steps = -1: it must be from 1 to 1000000' --steps=-1
refuses '--threads = -2: it must be from 0 to 4096' --threads=-2
refuses '--threads = 100000: it must be from 0 to 4096' --threads=100000
refuses '--shape=huge is none of tiny, .*' --shape=huge
refuses "'train \{ device: GPU \}':.*GPU.*CUDA.*" --device=GPU
refuses "'train \{ device: CUDA \}' names a train.device; name one for all with --device" 'train { device: CUDA }'
refuses "--json=$folder/no/file: No such file or directory; name a file that can be written" \
  --json="$folder/no/file"
refuses "--json=$folder: Is a directory; name a file that can be written" --json="$folder"
refuses '--replay is for --device=CUDA, not CPU' --replay
refuses "--profile=$folder: Is a directory; name a file that can be written" --profile="$folder"
refuses '--profile is for one variant, not for 2' --profile="$folder/profile.json" '' ''
refuses '--profile waits for every operation: no --replay' --device=CUDA --replay \
  --profile="$folder/profile.json"
refuses '--interactive is for one variant, not for 2' --interactive '' ''
refuses "'model \{ lyers: 2 \}':1:9: no field \"lyers\" in model; did you mean \"layers\"\?" 'model { lyers: 2 }'
refuses "'model \{ kv_heads: 3 head_dim: 5 \}' has 2 mistakes:.model.heads = .*.model.head_dim = 5 .*" \
  'model { kv_heads: 3 head_dim: 5 }'
refuses "'parallel \{ tensor: 2 \}' has 1 mistake:..*ranks.*" 'parallel { tensor: 2 }'
refuses "'parallel \{ tensor: 0 \}' has [0-9] mistakes?:.parallel.tensor = 0.*" 'parallel { tensor: 0 }'
for line in words 0 -1 99999999999 '1 2'; do
  refuses "standard input: \"$line\" is no number of steps from 1 to 1000000" --interactive <<<"$line"
done
[ "$("$program" --shape=tiny --interactive <<<$'1\n2' | wc -l)" = 3 ] || {
  echo "FAILED: --interactive answers two lines, and says when it is ready, in three"
  exit 1
}

# A variant of one rank in turn with one of two.
mpirun -np 2 "$program" --shape=tiny --rounds=1 --steps=1 --json="$folder/report.json" \
  '' 'parallel { tensor: 2 }' >"$output" 2>&1 &&
  [ "$(grep -c '"variant": ' "$folder/report.json")" = 2 ] || {
  echo "FAILED: two variants on two ranks:"
  cat "$output"
  exit 1
}

# Two steps to begin with, the first of which a profile forgets, and three more.
profile=$folder/profile.json
"$program" --shape=tiny --rounds=3 --steps=1 --profile="$profile" 'train { precision: BF16 }' >"$output" 2>&1 &&
  grep -q '^Profile of rank 0: 4 steps after the first, .*' "$output" &&
  python3 - "$profile" <<'PYTHON' || {
import json, sys
profile = json.load(open(sys.argv[1]))
attention = next(row for row in profile["operations"] if row["op"] == "attention forward")
assert profile["steps"] == 4 and attention["calls"] == 4 * 2 and attention["dtype"] == "BF16", profile
PYTHON
  echo "FAILED: --profile has no such rows:"
  cat "$output" "$profile"
  exit 1
}
