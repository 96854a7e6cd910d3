#!/usr/bin/env bash
# Shows on a machine with a card what Twinstream's CUDA backend is worth there: tests of operations,
# golden files and layouts, four ranks on the card, then benchmarks. Minutes; nothing is installed.
# Usage: deploy/gpu_check.sh [BUNDLE [RESULTS]]
#   BUNDLE: deploy/bundle.sh's archive, or the folder that was in it (default: where this script lies)
#   RESULTS: folder (default: gpu_check.results); logs, tables and JSON go to its folder latest
# Exit code 0 only when every part passed. Parts that cannot be done are SKIPPED, with the reason.
set -euo pipefail

trap 'exit 130' INT

refuse() { # refuse REASON
  echo "gpu_check.sh: $1" >&2
  exit 2
}

here=$(cd "$(dirname "$0")" && pwd)
bundle=$(realpath "${1:-$here}")
results=$(realpath -m "${2:-gpu_check.results}")
mkdir -p "$results"
if [[ -f $bundle ]]; then
  unpacked=$results/bundle-$(sha256sum "$bundle" | cut -c1-16)
  if [[ ! -d $unpacked ]]; then
    command -v xz >/dev/null || refuse "there is no xz to unpack $bundle with; install xz-utils"
    mkdir -p "$unpacked.new"
    tar -C "$unpacked.new" --strip-components=1 -xJf "$bundle"
    mv "$unpacked.new" "$unpacked"
  fi
  bundle=$unpacked
fi
[[ -x $bundle/bin/twinstream ]] ||
  refuse "$bundle is no bundle; make one with deploy/bundle.sh and name it"
needed=$(<"$bundle/glibc") found=$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)
[[ $(printf '%s\n' "$needed" "$found" | sort -V | head -n 1) == "$needed" ]] ||
  refuse "the bundle needs glibc $needed and this host has $found: take one with a newer distribution"
results=$results/latest
rm -rf "$results" && mkdir "$results"
# shellcheck source=/dev/null
source "$bundle/part.sh"
# shellcheck source=/dev/null
source "$bundle/env.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none

# Of several cards one, which the ranks share: the first of those that are visible, as nvidia-smi counts.
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*}

# Where CUDA's libraries are: the loader's own folders, the toolkit's, a Python environment's.
in_python='import glob, nvidia
for path in nvidia.__path__: print(*glob.glob(path + "/*/lib"), sep="\n")'
while read -r folder; do
  if [[ -d $folder ]]; then LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$folder; fi
done < <(printf '%s\n' "${CUDA_HOME:-/usr/local/cuda}"/{lib64,targets/x86_64-linux/lib} &&
  python3 -c "$in_python" 2>/dev/null)

# Ctrl-C reaches the command too.
limited() { # limited SECONDS COMMAND...
  timeout --foreground --kill-after=5 "$@"
}

skipped=()
skip() { # skip PART REASON
  skipped+=("SKIPPED $1: $2")
  echo "${skipped[-1]}"
}

card() {
  limited 20 nvidia-smi --id="$CUDA_VISIBLE_DEVICES" --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader
}

# A test program without tests: it says what keeps the CUDA backend from being used.
loads() { limited 30 cuda_device_test --gtest_filter=NoSuchTest; }

# The backend for this CUDA, in place of the one that came along: only if it loads.
compile_module() (
  cd "$bundle"
  objects=$results/module
  nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
  [[ -x $nvcc ]] || { echo "there is no nvcc to compile another module with" && exit 1; }
  rm -rf "$objects" && mkdir -p "$objects/core/cuda"
  printf '%s\0' core/cuda/*.{cu,cc} |
    xargs -0 -P "$(nproc)" -I{} timeout --foreground 110 "$nvcc" -std=c++20 -O3 -DNDEBUG \
      -arch="${GPU_ARCH:-native}" --expt-relaxed-constexpr -Xcompiler=-fPIC -I. -Icore/cuda/native \
      -Iinclude -c {} -o "$objects/{}.o" || exit 1
  "$nvcc" -shared -cudart=static -o "$objects/twinstream_cuda.so" "$objects"/core/cuda/*.o \
    -lcublasLt || exit 1
  mv bin/twinstream_cuda.so "$objects/shipped.so" && mv "$objects/twinstream_cuda.so" bin/
  loads || { mv "$objects/shipped.so" bin/twinstream_cuda.so && exit 1; }
)

operations() { limited 60 cuda_device_test --gtest_brief=1 --gtest_filter='-DeviceTraining*'; }
training() {
  TWINSTREAM_EXHAUSTIVE=1 limited 90 cuda_device_test --gtest_filter='DeviceTraining*'
}
# What the kernels' threads do to memory, and to each other.
sanitized() { # sanitized TOOL TESTS
  limited 40 compute-sanitizer --tool "$1" --error-exitcode 9 \
    "$bundle/bin/cuda_device_test" --gtest_brief=1 --gtest_filter="$2"
}

write_job() {
  cat >"$results/job.textproto" <<'JOB'
name: "gpu_check"
model { residual: SIAMESE_HYBRID_PRE layers: 4 hidden: 256 heads: 4 ffn: 688 vocabulary: 256 sequence: 256 }
data { train { path: "text.bin" } }
optimizer { peak_lr: 1e-3 }
train { steps: 20 global_batch: 8 microbatch: 2 device: CUDA }
JOB
  for _ in $(seq 20); do cat "$bundle/LICENSE"; done >"$results/text.txt"
  twinstream prepare-data --input="$results/text.txt" --output="$results/text" --tokenizer=bytes
}
four_ranks() { # four_ranks PRECISION LAYOUT: against one rank
  limited 60 mpirun -np 4 --wdir "$results" "$bundle/bin/twinstream" verify job.textproto \
    --override="parallel { $2 } train { precision: $1 }"
}

time_operations() {
  limited 60 ops_benchmark --device=cuda --benchmark_filter=/1.3B/BF16 --benchmark_min_time=0.02 \
    --benchmark_out="$results/operations.json"
}
# Steps of these schemes in turn, with the first of these micro-batches for which the card has memory.
time_steps() { # time_steps NAME SHAPE "SCHEME..." MICROBATCH...
  local name=$1 shape=$2 batch scheme train variants
  for batch in "${@:4}"; do
    train="train { precision: BF16 global_batch: $batch microbatch: $batch }"
    variants=()
    for scheme in $3; do variants+=("$train model { sequence: 2048 residual: $scheme }"); done
    echo "micro-batches of $batch:"
    limited 100 train_benchmark --device=CUDA --shape="$shape" --rounds=5 --steps=3 \
      --json="$results/$name.json" "${variants[@]}" && return 0
  done
  return 1
}

against_torch() {
  limited 100 python3 "$bundle/compare_torch.py" --program="$bundle/bin/train_benchmark" --device=CUDA \
    --shapes=1.3B --precisions=BF16 --schemes=PRE_NORM,SIAMESE_HYBRID_PRE --rounds=3 --steps=3 \
    --job='model { sequence: 2048 }' --json="$results/torch.json"
}

run() { # run NAME COMMAND...: a part of this script, with the results under that name
  part "$1" "$results/${1// /-}.txt" "${@:2}"
}

if ! run card card; then
  echo "gpu_check.sh: nvidia-smi shows no card" >&2
  exit 1
fi
if ! loads >"$results/module.txt" 2>&1; then
  tail -n 3 "$results/module.txt"
  # What another CUDA than the module's explains.
  grep -Eq 'a module that fits|the loader does not find|driver for CUDA' "$results/module.txt" || exit 1
  run "module compiled here" compile_module || exit 1
fi
run operations operations || true
run training training || true
if command -v compute-sanitizer >/dev/null; then
  run memcheck sanitized memcheck '*SwiGlu*:*Loss*:*Embedding*:*Moe*:*Route*' || true
  run racecheck sanitized racecheck '*Loss*:*Embedding*:*Route*' || true
else
  skip "memcheck and racecheck" "there is no compute-sanitizer here"
fi
if run job write_job; then
  run "four ranks FP32" four_ranks FP32 "tensor: 2 pipeline: 2" || true
  run "four ranks BF16" four_ranks BF16 "tensor: 2 data: 2 sequence_parallel: true" || true
fi
run "time of operations" time_operations || true
run "steps of 400M" time_steps steps-400M 400M "PRE_NORM SIAMESE_HYBRID_PRE SIAMESE_POST_PRE" 16 8 4 ||
  true
run "steps of 1.3B" time_steps steps-1.3B 1.3B SIAMESE_HYBRID_PRE 8 4 2 1 || true
run "two streams and one" time_steps streams-1.3B 1.3B "PRE_NORM SIAMESE_HYBRID_PRE" 4 2 1 || true

if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
  run "against PyTorch" against_torch || true
else
  skip "against PyTorch" "there is no python3 whose torch sees the card"
fi

results_json() {
  local i comma=
  printf '{"card": "%s", "parts": [' "$(head -n 1 "$results/card.txt")"
  # shellcheck disable=SC2154 # part.sh's
  for i in "${!part_names[@]}"; do
    printf '%s\n  {"part": "%s", "passed": %s}' "$comma" "${part_names[$i]}" \
      "$([[ ${part_results[$i]} == ok* ]] && echo true || echo false)"
    comma=,
  done
  printf '\n]}\n'
}
tables() {
  head -n 1 "$results/card.txt"
  tail -n 8 "$results/four-ranks-FP32.txt"
  for steps in steps-of-400M steps-of-1.3B two-streams-and-one; do
    echo "$steps, $(grep '^micro-batches' "$results/$steps.txt" | tail -n 1)"
    grep '^|' "$results/$steps.txt" | sed -E 's/train \{.*residual: ([A-Z_]+) \}/\1/'
  done
  grep '^|' "$results/against-PyTorch.txt"
  awk -F'  +' '/\/1.3B\/BF16/ { print }' "$results/time-of-operations.txt" |
    sed -E 's|/1.3B/BF16/real_time||; s/ +[0-9.]+ us +[0-9]+ / /' | head -n 30
  printf '%s\n' "${skipped[@]}"
} 2>/dev/null
results_json >"$results/gpu_check.json"
tables || true
part_summary
