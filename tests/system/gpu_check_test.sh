#!/bin/bash
# deploy/gpu_check.sh on a machine without a card: a bundle of stubs, whose benchmarks are the real ones
# on the CPU. Table, JSON, exit code, time limits, what is skipped, a module that is compiled there, a
# second run.
# Usage: gpu_check_test.sh FOLDER_OF_THE_TEST_PROGRAMS
set -u
programs=$(realpath "$1")
deploy=$(realpath "$(dirname "$0")/../../deploy")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bundle="$folder/a bundle" tools=$folder/tools results=$folder/results
output=$folder/output
export FAKE=$folder/fake # what the stubs are told, and what they tell
mkdir -p "$bundle"/{bin,core/cuda} "$tools" "$FAKE"

fail() { # fail MESSAGE
  echo "FAILED: $*. The output:"
  sed 's/^/    /' "$output"
  exit 1
}

stub() { # stub FOLDER/NAME: with the standard input as its code
  { echo '#!/bin/bash' && cat; } >"$1" && chmod +x "$1"
}

# A stub that finds a file FAKE/hangs-WHAT hangs, with FAKE/fails-WHAT it fails.
cat >"$FAKE/mood" <<'STUB'
mood() { # mood WHAT
  if [ -e "$FAKE/hangs-$1" ]; then echo $$ >"$FAKE/hanging" && sleep 300; fi
  if [ -e "$FAKE/fails-$1" ]; then echo "[  FAILED  ] of $1" && exit 1; fi
}
STUB
stub "$tools/nvidia-smi" <<'STUB'
echo "NVIDIA \"H100\" 80GB HBM3, 9.0, 580.65.06, 81559 MiB, 80900 MiB"
STUB
stub "$tools/python3" <<'STUB'
[ -e "$FAKE/torch" ] || exit 1
for i in $(seq 80); do echo "| row $i |"; done
STUB
stub "$tools/nvcc" <<'STUB'
. "$FAKE/mood"
case "$*" in
  --version) echo "release 13.0" && exit ;;
  *device.cc*) mood nvcc ;;
esac
echo "nvcc $*" >>"$FAKE/nvcc.calls"
while [ "$1" != -o ]; do shift; done
cp "$FAKE/compiled" "$2"
STUB
stub "$bundle/bin/cuda_device_test" <<'STUB'
. "$FAKE/mood"
module=$(<"$(dirname "$0")/twinstream_cuda.so")
case "$*" in
  *NoSuchTest*)
    [ "$module" = fits ] && exit
    echo "SKIPPED: nothing is tested on a card: train.device = CUDA needs a module that fits this program"
    exit 77 ;;
  *-DeviceTraining*) mood operations ;;
  *DeviceTraining*) echo "$TWINSTREAM_EXHAUSTIVE $*" >>"$FAKE/trained" && mood training ;;
esac
STUB
stub "$bundle/bin/backends_test" <<'STUB'
. "$FAKE/mood"
mood communicator
[ ! -e "$FAKE/no-card" ] || { echo "SKIPPED: no card" && exit; }
echo "ranks on several cards need NCCL, and the loader says \"libnccl.so.2: cannot open\""
exit 134
STUB
stub "$bundle/bin/mpirun" <<'STUB'
echo "loss                             3.63e-08     1.00e-05  ok"
STUB
stub "$bundle/bin/train_benchmark" <<STUB
batch=\$(sed -E 's/.* microbatch: ([0-9]+).*/\1/' <<<"\$*")
if [ "\$batch" -gt \$(cat "\$FAKE/most_batch") ]; then
  echo "card 0 has no 1073741824 bytes of memory left (512 of its 85899345920 bytes are free): use more ranks"
  exit 1
fi
arguments=() json= replayed=
for argument; do
  case \$argument in
    --replay) replayed=yes && continue ;;
    --json=*) json=\${argument#*=} ;;
    --device=*) argument=--device=CPU ;;
    --shape=*) argument=--shape=tiny ;;
    --rounds=*) argument=--rounds=1 ;;
    train*) argument=\$(sed 's/batch: [0-9]*/batch: 2/g; s/sequence: 2048/sequence: 32/' <<<"\$argument") ;;
  esac
  arguments+=("\$argument")
done
OMP_NUM_THREADS=1 "$programs/train_benchmark" "\${arguments[@]}" || exit
[ -z "\$replayed" ] || [ -e "\$FAKE/fails-replay" ] || sed -i 's/"replayed_steps": 0/"replayed_steps": 5/' "\$json"
STUB
stub "$bundle/bin/ops_benchmark" <<STUB
arguments=()
for argument; do
  case \$argument in
    --benchmark_filter=*)
      echo "\${argument#*=}" >"\$FAKE/filter"
      argument=\$(sed 's/1\.3B/tiny/g; s/400M/S/g' <<<"\$argument") ;;
    --benchmark_out=*) out=\${argument#*=} ;;
    --device=*) argument=--device=cpu ;;
  esac
  arguments+=("\$argument")
done
"$programs/ops_benchmark" "\${arguments[@]}" --benchmark_min_time=0.001 &&
  sed -i 's|/tiny/|/1.3B/|; s|/S/|/400M/|' "\$out"
STUB
ln -s "$programs/../twinstream" "$bundle/bin/twinstream"
cp "$deploy"/gpu_{check,report}.sh "$deploy/part.sh" "$deploy/../LICENSE" "$bundle/"
touch "$bundle/core/cuda"/{attention.cu,device.cc} "$bundle/compare_torch.py"
echo 2.0 >"$bundle/glibc"
echo "PATH='$bundle/bin':\$PATH LD_LIBRARY_PATH=" >"$bundle/env.sh"
echo fits >"$bundle/bin/twinstream_cuda.so"
echo 1000 >"$FAKE/most_batch"

check() { # check EXIT_CODE MOST_SECONDS [VARIABLE=VALUE...]: the script's exit code, and that of its files
  local begin=$SECONDS got=0
  env -u TWINSTREAM_EXHAUSTIVE PATH="$tools:/usr/bin:/bin" CUDA_HOME="$folder" "${@:3}" \
    bash "$bundle/gpu_check.sh" "$bundle" "$results" >"$output" 2>&1 || got=$?
  [ "$got" = "$1" ] || fail "exit code $got instead of $1"
  [ $((SECONDS - begin)) -le "$2" ] || fail "$((SECONDS - begin)) s instead of $2 at most"
  local table=$results/latest/table.txt lines
  lines=$(wc -l <"$table") || fail "there is no table"
  [ "$lines" -le 60 ] || fail "a table of $lines lines"
  tail -n "$lines" "$output" | cmp - "$table" || fail "the table is not last"
  python3 - "$results/latest" <<'PYTHON' || fail "table and JSON differ"
import json, re, sys
report = json.load(open(sys.argv[1] + "/gpu_check.json"))
table = open(sys.argv[1] + "/table.txt").read().splitlines()
assert report["card"] == table[0] == 'NVIDIA "H100" 80GB HBM3, 9.0, 580.65.06, 81559 MiB, 80900 MiB', table[0]
rows = [re.match(r"(.{28}) (ok|FAILED|SKIPPED) +(\d+) s *(.*)", line) for line in table]
rows = [(m[1].strip(), m[2], int(m[3]), m[4]) for m in rows if m]
assert rows == [(p["part"], p["result"], p["seconds"], p["note"]) for p in report["parts"]], rows
operations = [line.split() for line in table if "/BF16 " in line or "/F32 " in line]
for row, json_row in zip(operations, report["operations"]):
    assert [row[0], *map(float, row[1:5]), row[5]] == list(json_row.values()), (row, json_row)
assert len(operations) == len(report["operations"]) or len(table) == 60, operations
keys = ("steps_1.3B", "replayed_steps_1.3B", "steps_400M", "two_streams_and_one")
steps = [step for key in keys for step in report.get(key, [])]
shown = [m for m in (re.search(r"x \d+ ([A-Z_]+)(, replayed)? \|", line) for line in table) if m]
assert [m[1] for m in shown] == [step["scheme"] for step in steps], shown
assert [bool(m[2]) for m in shown] == [step["replayed_steps"] > 0 for step in steps], shown
PYTHON
}
says() { # says PATTERN: a line of the table matches
  grep -Eq -- "$1" "$results/latest/table.txt" || fail "no line in the table like: $1"
}
gone() { # gone: what hung is no longer there, or about to go
  for _ in $(seq 20); do
    kill -0 "$(cat "$FAKE/hanging")" 2>/dev/null || return 0
    sleep 0.1
  done
  fail "a process is left"
}

# Two parts fail, one hangs until its limit, two cannot be done; memory is less than it seems.
touch "$FAKE"/{fails-operations,fails-replay,hangs-communicator}
echo 15 >"$FAKE/most_batch"
check 1 120
gone
says '^operations +FAILED +[0-9]+ s +/.*/latest/operations.txt$'
says '^communicator +FAILED +2[0-2] s '
says '^memcheck +SKIPPED +0 s +there is no compute-sanitizer here$'
says '^against PyTorch +SKIPPED +0 s +there is no python3 whose torch sees the card$'
says '^profile of 1.3B +ok '
says '^replayed steps of 1.3B +FAILED '
says '^3 failed$'
says '^\| 1.3B x 15 SIAMESE_HYBRID_PRE \| '
says '^\| 400M x [0-9]+ SIAMESE_POST_PRE \| '
says '^\| 1.3B x 5 PRE_NORM \| '
for operation in Attention{Forward,Backward} Residual{Forward,Backward}/{PRE_NORM/attention,SIAMESE_HYBRID_PRE/mlp} \
  SwiGlu{Forward,Backward} QkvForward/plain AdamW LogitGradient Matmul/up/weight_gradient \
  GroupedMatmul/experts_up/forward; do
  says "^$operation/1.3B/BF16 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ G(B|FLOP)/s\$"
done
for product in up/forward up/weight_gradient down/forward; do says "^GroupedMatmul/experts_$product/400M/BF16 "; done
says '^LogitStatistics/1.3B/F32 '
[ "$(grep -A 3 -c '^step of 1.3B, furthest' "$results/latest/table.txt")" = 1 ] || fail "no rows of the profile"
grep -q '"profile_1.3B": {"rank": 0, "steps": 2' "$results/latest/gpu_check.json" || fail "no profile in the JSON"

# With the row of replayed steps and three of PyTorch in place of "3 failed" there are 60 lines: all fits.
[ "$(wc -l <"$results/latest/table.txt")" -le 57 ] || fail "the table has no room for PyTorch"

# Its names are those of programs of this build.
listed=$("$programs/ops_benchmark" --benchmark_list_tests --benchmark_filter="$(cat "$FAKE/filter")" | wc -l)
[ "$listed" = "$(tr '|' '\n' <"$FAKE/filter" | wc -l)" ] || fail "$listed operations of $(cat "$FAKE/filter")"

# A second run, where nothing fails and torch has more rows than there is room for.
rm "$FAKE"/{fails,hangs}-*
touch "$FAKE/torch" "$results/latest/old"
stub "$tools/compute-sanitizer" <<'STUB'
echo "$*" >>"$FAKE/sanitized"
case "$*" in *racecheck*) echo "========= Error: Device not supported" && exit 1 ;; esac
STUB
check 0 120
says '^communicator +SKIPPED +0 s +the loader finds no libnccl.so.2$'
says '^memcheck +ok '
says '^racecheck +SKIPPED +0 s +compute-sanitizer cannot watch this card here$'
says '^against PyTorch +ok '
says '^\| row 2 \|$'
says '^\| 1.3B x [0-9]+ SIAMESE_HYBRID_PRE, replayed \| '
[ ! -e "$results/latest/old" ] || fail "results of two runs are mixed"
tests_of() { # tests_of FILTER: their number
  "$programs/emulated_device_test" --gtest_list_tests --gtest_filter="$1" | grep -c '^  '
}
for filter in $(sed 's/.*--gtest_filter=//' "$FAKE"/{sanitized,trained} | tr ':' '\n' | sort -u); do
  [ "$(tests_of "$filter")" != 0 ] || fail "no test is a $filter"
done
for tool in memcheck racecheck; do
  for tests in CpuAttention ResidualTest GroupedProductsTest; do
    grep -q -- "--tool $tool .*$tests" "$FAKE/sanitized" || fail "$tool does not see $tests"
  done
done

# Every test of training runs, and the layout matrices once more, with every layout.
once=$(sed -n 's/^ .*--gtest_filter=//p' "$FAKE/trained" | sort -u | paste -sd:)
[ "$(tests_of "$once")" = "$(tests_of 'DeviceTraining*')" ] || fail "$once is not all training"
grep -q '^1 .*OfADenseModel.*OfAMixtureOfExperts' "$FAKE/trained" || fail "no layout matrices"

# A card that is lost: tests that skip themselves do not pass.
touch "$FAKE"/{no-card,hangs-training}
check 1 20 GPU_CHECK_SECONDS=4
says '^communicator +FAILED '
rm "$FAKE"/{no-card,hangs-training}

# Another CUDA: the module is compiled there. Time ends before that does.
touch "$FAKE"/hangs-{nvcc,operations}
echo other >"$bundle/bin/twinstream_cuda.so"
echo fits >"$FAKE/compiled"
check 1 11 GPU_CHECK_SECONDS=4
gone
says '^CUDA backend +SKIPPED +[0-9]+ s +out of time$'
rm "$FAKE/hangs-nvcc"

# The next run goes on with it, the one after that finds it done. The time ends in the operations that come then.
for _ in 1 2; do
  check 0 13 GPU_CHECK_SECONDS=6
  gone
  says '^CUDA backend +ok '
  [ "$(grep -c SKIPPED "$results/latest/table.txt")" = 16 ] || fail "not all the others are skipped"
  says '^operations +SKIPPED +[0-9]+ s +out of time$'
  says '^against PyTorch +SKIPPED +0 s +out of time$'
done
[ "$(cat "$bundle/bin/twinstream_cuda.so")" = fits ] || fail "the compiled module is not in its place"
compiled_once() {
  local sources
  sources=$(sed -n 's/^nvcc .* -c .*\/\([^ ]*\) -o .*/\1/p' "$FAKE/nvcc.calls" | sort | paste -sd' ')
  [ "$sources" = "attention.cu device.cc" ] || fail "compiled are $sources, not two sources once"
}
compiled_once
grep -q -- "-arch=sm_90a .* -I$bundle .* -c $bundle/core/cuda/attention.cu -o " "$FAKE/nvcc.calls" ||
  fail "another command"

# One that does not fit either: the one that came along is back.
echo other >"$bundle/bin/twinstream_cuda.so"
echo neither >"$FAKE/compiled"
check 1 10
says '^CUDA backend +FAILED '
[ "$(grep -c SKIPPED "$results/latest/table.txt")" = 0 ] || fail "there is more than one part"
[ "$(cat "$bundle/bin/twinstream_cuda.so")" = other ] || fail "the shipped module is not back"
compiled_once

# Of other sources there are no objects yet.
echo "// changed" >>"$bundle/core/cuda/device.cc"
check 1 10
[ "$(grep -c ' -c ' "$FAKE/nvcc.calls")" = 4 ] || fail "old objects for new sources"

# Stopped, or left by its terminal, it leaves nothing behind.
echo fits >"$bundle/bin/twinstream_cuda.so"
for signal in TERM HUP; do
  rm "$FAKE/hanging"
  env PATH="$tools:/usr/bin:/bin" CUDA_HOME="$folder" bash "$bundle/gpu_check.sh" "$bundle" "$results" >"$output" 2>&1 &
  script=$!
  for _ in $(seq 100); do [ ! -e "$FAKE/hanging" ] && sleep 0.1; done
  kill -"$signal" "$script"
  wait "$script" && fail "a stopped script ends with 0"
  gone
done

GPU_CHECK_SECONDS=soon bash "$bundle/gpu_check.sh" >"$output" 2>&1
[ "$?" = 2 ] || fail "a time of no number passes"
grep -q '^gpu_check.sh: GPU_CHECK_SECONDS=soon is no number' "$output" || fail "the time is not named"
