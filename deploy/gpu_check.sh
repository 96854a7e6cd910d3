#!/usr/bin/env bash
# Shows on a machine with a card what Twinstream's CUDA backend is worth there: tests of operations,
# golden files, four ranks on the card, then benchmarks. Within five minutes; nothing is installed.
# Usage: deploy/gpu_check.sh [BUNDLE [RESULTS]]
#   BUNDLE: deploy/bundle.sh's archive, or the folder that was in it (default: where this script lies)
#   RESULTS: folder (default: gpu_check.results); its folder latest gets the logs, gpu_check.json and
#            table.txt, which is also printed last and has at most 60 lines
#   GPU_CHECK_SECONDS: variable of the environment, how long all of it may take (default: 290)
# Parts that cannot be done, or for which no time is left, are SKIPPED, with the reason. Exit code 0: the
# backend works and no part failed; 1: it does not, or one did; 2: the bundle or a setting is wrong.
set -euo pipefail

deadline=${GPU_CHECK_SECONDS:-290} # in seconds since the start, as SECONDS
part_end=$deadline                 # of the part under way
part_log=/dev/null                 # its output
running=                           # its command

stop() { # with what it runs
  if [[ -n $running ]]; then kill "$running"; fi
  exit 130
}
trap stop INT TERM HUP

refuse() { # refuse REASON
  echo "gpu_check.sh: $1" >&2
  exit 2
}
[[ $deadline =~ ^[1-9][0-9]{0,5}$ ]] ||
  refuse "GPU_CHECK_SECONDS=$deadline is no number of seconds from 1 to 999999"

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
source "$bundle/gpu_report.sh"
# shellcheck source=/dev/null
source "$bundle/env.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none

# Of several cards one, which the ranks share: the first of those that are visible, as nvidia-smi counts.
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*}

# Ranks on one card exchange by way of the host: no kernel that is loaded at its first launch waits for
# another rank (core/cuda/factory.cc), and to load all of cuBLASLt takes each process seconds.
export CUDA_MODULE_LOADING=${CUDA_MODULE_LOADING:-LAZY}

# Where CUDA's programs and libraries are: the loader's own folders, the toolkit's, a container's, a Python
# environment's.
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/nvidia/bin
in_python='import glob, nvidia
for path in nvidia.__path__: print(*glob.glob(path + "/*/lib"), sep="\n")'
while read -r folder; do
  if [[ -d $folder ]]; then LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$folder; fi
done < <(printf '%s\n' "${CUDA_HOME:-/usr/local/cuda}"/{lib64,targets/x86_64-linux/lib} /usr/local/nvidia/lib64 &&
  python3 -c "$in_python" 2>/dev/null)

# Runs the command until the part's time is over: its own limit or, if that is earlier, the deadline. In a
# process group of its own, so that nothing of it stays on the card.
limited() { # limited COMMAND...
  local left=$((part_end - SECONDS)) status=124
  if ((left > 0)); then
    status=0
    timeout --kill-after=5 "$left" "$@" &
    running=$!
    wait "$running" || status=$?
    running=
  fi
  if [[ $status -eq 124 || $status -eq 137 ]]; then
    ((SECONDS < deadline)) || { echo "SKIPPED: out of time" && return 77; }
    echo "stopped at the end of its time"
  fi
  [[ $status -ne 77 ]] || return 1 # a test that finds no card, where there is one
  return "$status"
}

skip() { # skip REASON: of the part under way
  echo "SKIPPED: $1"
  return 77
}

card() {
  limited nvidia-smi --id="$CUDA_VISIBLE_DEVICES" --format=csv,noheader \
    --query-gpu=name,compute_cap,driver_version,memory.total,memory.free
}

# A test program without tests: it says what keeps the CUDA backend from being used.
loads() { limited cuda_device_test --gtest_filter=NoSuchTest; }

put_module() { # put_module FILE: at any moment there is a whole one
  cp "$1" "$bundle/bin/twinstream_cuda.so.new" &&
    mv "$bundle/bin/twinstream_cuda.so.new" "$bundle/bin/twinstream_cuda.so"
}

# The backend for this CUDA, in place of the one that came along: only if it loads. Its objects stay with
# the bundle, so that a run whose time ends here is not lost: the next one compiles those that are missing.
compile_module() {
  local nvcc arch key objects source
  nvcc=$(command -v nvcc) ||
    { echo "there is no nvcc to compile another module with: name CUDA's folder in CUDA_HOME" && return 1; }
  arch=sm_$(awk -F', ' 'NR == 1 { sub("[.]", "", $(NF - 3)); print $(NF - 3) }' "$results/card.txt")
  arch=${arch/%_90/_90a} # Hopper's own instructions too
  # Of this compiler, this kind of card, these sources and these flags.
  key=$({ "$nvcc" --version && echo "$arch" &&
    find "$bundle/core" "$0" -type f -print0 | sort -z | xargs -0 cat; } | sha256sum) || return
  objects=$bundle/objects/${key:0:16}
  mkdir -p "$objects" || return
  limited "$nvcc" -shared -cudart=static -o "$objects/nothing.so" -x cu /dev/null -lcublasLt ||
    { echo "nvcc finds no cuBLASLt to link: name the folder of a whole toolkit in CUDA_HOME" && return 1; }
  for source in "$bundle"/core/cuda/*.{cu,cc}; do
    [[ -f $objects/${source##*/}.o ]] || printf '%s\0' "${source##*/}"
  done >"$objects/missing"
  # An object has its name once it is whole.
  limited xargs -0 -a "$objects/missing" -P "$(nproc)" -I{} \
    bash -c '"${@:2}" -o "$1.new" && mv "$1.new" "$1"' compile "$objects/{}.o" \
    "$nvcc" -std=c++20 -O3 -DNDEBUG -arch="$arch" --expt-relaxed-constexpr -Xcompiler=-fPIC -I"$bundle" \
    -I"$bundle/core/cuda/native" -I"$bundle/include" -c "$bundle/core/cuda/{}" || return
  limited "$nvcc" -shared -cudart=static -o "$objects/twinstream_cuda.so" "$objects"/*.o -lcublasLt ||
    return
  cp "$bundle/bin/twinstream_cuda.so" "$objects/shipped.so" && put_module "$objects/twinstream_cuda.so" ||
    return
  loads || { put_module "$objects/shipped.so" && return 1; }
}

# The module that came along, or one that is compiled where another CUDA than its own explains why it
# does not load.
backend() {
  local status=0
  loads || status=$?
  [[ $status -eq 0 ]] && return
  grep -Eq 'a module that fits|the loader does not find|driver for CUDA' "$part_log" || return "$status"
  compile_module
}

operations() { limited cuda_device_test --gtest_brief=1 --gtest_filter='-DeviceTraining*'; }
communicator() {
  local status=0
  limited backends_test --gtest_filter='CudaDeviceTest.*' || status=$?
  if [[ $status -ne 0 ]] && grep -q 'need NCCL' "$part_log"; then
    skip "the loader finds no libnccl.so.2"
    return
  fi
  [[ $status -eq 0 ]] || return "$status"
  ! grep -q '^SKIPPED' "$part_log" # a test that finds no card, where there is one
}
training() { limited cuda_device_test --gtest_filter="$1"; } # training TESTS

# What the kernels' threads do to memory, and to each other where they share some. Attention and products
# of groups copy into it asynchronously; the large group's sums use every stage again.
groups='GroupedProductsTest.EveryCall*:GroupedProductsTest.ALargeGroup*'
small='*SwiGlu*:*Loss*:*Embedding*:RouteTokens.*:RouterBackward.*:MoeRows.*:CpuQkvForward.*'
small+=':Cases/CpuQkv.TheGradientMayReplaceQkv/*:ResidualTest.ARealisticWidth*:ResidualTest.ScalesAre*:AdamWTest.TheRounded*'
small+=":AdamWTest.ManyTensors*:SumsOfSquaresTest.*:$groups"
racing='*Loss*:*Embedding*:RouteTokens.*:RouterBackward.*:CpuQkvBackward.NormGradientsRepeat*'
racing+=":ResidualTest.ARealisticWidth*:ResidualTest.ScalesAre*:*SumOfSquaresIsExact*:$groups"
attention='Shapes/CpuAttention.*/B2T17H2K2D8:Shapes/CpuAttention.*/B1T64H2K1D80'
attention+=':Shapes/CpuAttention.*/B1T160H2K1D128'
sanitized() { # sanitized TOOL TESTS
  local status=0
  command -v compute-sanitizer >/dev/null || { skip "there is no compute-sanitizer here" || return; }
  # Kernels are loaded one by one: only those that run are instrumented.
  CUDA_MODULE_LOADING=LAZY limited compute-sanitizer --tool "$1" --error-exitcode 9 \
    "$bundle/bin/cuda_device_test" --gtest_brief=1 --gtest_filter="$2" || status=$?
  if [[ $status -ne 0 ]] && grep -q 'Device not supported' "$part_log"; then
    skip "compute-sanitizer cannot watch this card here"
    return
  fi
  if [[ $status -eq 124 ]] && ! grep -qE '=========.*(rror|hazard)' "$part_log"; then
    skip "compute-sanitizer had found nothing when its time was over"
    return
  fi
  return "$status"
}

write_job() {
  for _ in $(seq 20); do cat "$bundle/LICENSE"; done >"$results/text.txt"
  twinstream prepare-data --input="$results/text.txt" --output="$results/text" --tokenizer=bytes &&
    cat >"$results/job.textproto" <<'JOB'
name: "gpu_check"
model { residual: SIAMESE_HYBRID_PRE layers: 4 hidden: 256 heads: 4 ffn: 688 vocabulary: 256 sequence: 256 }
data { train { path: "text.bin" } }
optimizer { peak_lr: 1e-3 }
train { steps: 20 global_batch: 8 microbatch: 2 device: CUDA }
JOB
}
four_ranks() { # four_ranks PRECISION LAYOUT: against one rank
  [[ -f $results/job.textproto ]] || write_job || return
  limited mpirun -np 4 --wdir "$results" "$bundle/bin/twinstream" verify job.textproto \
    --override="parallel { $2 } train { precision: $1 }"
}

# What a step of 1.3B consists of, and of 400M where its heads are others. Products of groups are one
# launch at 400M; at 1.3B each group is a product of cuBLASLt, as it fills the card alone.
timed=(Attention{Forward,Backward}/{1.3B,400M}/BF16
  Residual{Forward,Backward}/{PRE_NORM/attention,SIAMESE_HYBRID_PRE/mlp}/1.3B/BF16
  SwiGlu{Forward,Backward}/1.3B/BF16 Qkv{Forward,Backward}/plain/1.3B/BF16
  {AdamW,LogitGradient}/1.3B/BF16 LogitStatistics/1.3B/F32
  Matmul/{{qkv,up,head_panel}/forward,up/{input,weight}_gradient}/1.3B/BF16
  GroupedMatmul/experts_{up/forward/{1.3B,400M},up/weight_gradient/400M,down/forward/400M}/BF16)
time_operations() {
  limited ops_benchmark --device=cuda --benchmark_min_time=0.02 \
    --benchmark_filter="^($(IFS='|' && echo "${timed[*]}"))/real_time$" \
    --benchmark_out="$results/operations.json"
}

# Micro-batches to try on this card, from the one that should fill its memory.
microbatches() { # microbatches GIB_OF_STATE GIB_OF_A_SEQUENCE
  awk -v mib="$free_mib" -v state="$1" -v each="$2" 'BEGIN {
    most = (mib / 1024 - state) / each
    for (eighths = 8; eighths > 1; eighths -= eighths > 6 ? 1 : 2) {
      batch = int(most * eighths / 8)
      if (batch < 1) batch = 1
      if (batch != last) print batch
      last = batch
    }
  }'
}
# Steps of these schemes in turn, with the first micro-batch for which the card has memory. GiB are those
# of `twinstream train`'s plan: of a sequence its activations; of the state weights, gradients, moments
# and scratch, and 3 that CUDA and the measurement of the ceilings take.
time_steps() { # time_steps GIB_OF_STATE GIB_OF_A_SEQUENCE SHAPE "SCHEME..." FLAG...
  local batch scheme train variants status
  for batch in $(microbatches "$1" "$2"); do
    train="train { precision: BF16 global_batch: $batch microbatch: $batch }"
    variants=() status=0
    for scheme in $4; do variants+=("$train model { sequence: 2048 residual: $scheme }"); done
    echo "micro-batches of $batch:"
    limited train_benchmark --device=CUDA --shape="$3" --steps=1 "${@:5}" "${variants[@]}" \
      >"$results/try.txt" 2>&1 || status=$?
    cat "$results/try.txt"
    [[ $status -ne 0 ]] && grep -q 'memory left' "$results/try.txt" || return "$status"
  done
  skip "the card has no memory for a sequence"
}

steps_of_1_3b() { time_steps 26 2.95 1.3B SIAMESE_HYBRID_PRE "$@"; } # steps_of_1_3b FLAG...
replayed_steps() {
  local json=$results/replayed-1.3B.json
  steps_of_1_3b --rounds=4 --replay --json="$json" || return
  grep -q '"replayed_steps": [1-9]' "$json" || { echo "no step was replayed" && return 1; }
}

against_torch() {
  local status=0
  limited python3 -c 'import torch; assert torch.cuda.is_available()' || status=$?
  [[ $status -ne 77 ]] || return "$status"
  [[ $status -eq 0 ]] || { skip "there is no python3 whose torch sees the card" || return; }
  limited python3 "$bundle/compare_torch.py" --program="$bundle/bin/train_benchmark" --device=CUDA \
    --shapes=1.3B --precisions=BF16 --schemes=PRE_NORM,SIAMESE_HYBRID_PRE --rounds=3 --steps=3 \
    --job='model { sequence: 2048 }' --json="$results/torch.json"
}

run() { # run NAME SECONDS COMMAND...: a part of this script, which has so many seconds
  part_end=$((SECONDS + $2))
  if ((part_end > deadline)); then part_end=$deadline; fi
  part_log=$results/${1// /-}.txt
  part "$1" "$part_log" "${@:3}" || true
}

# In the order of what they are worth: even if every test hangs, some benchmarks get their time.
all_parts() {
  run "operations" 60 operations
  run "communicator" 20 communicator
  run "golden files and resuming" 40 training 'DeviceTraining.*'
  run "four ranks FP32" 25 four_ranks FP32 "tensor: 2 pipeline: 2"
  run "four ranks BF16" 25 four_ranks BF16 "tensor: 2 data: 2 sequence_parallel: true"
  run "steps of 1.3B" 60 steps_of_1_3b --rounds=4 --json="$results/steps-1.3B.json"
  run "replayed training" 25 training 'DeviceTrainingReplay.*'
  run "replayed steps of 1.3B" 60 replayed_steps
  run "time of operations" 40 time_operations
  run "memcheck" 45 sanitized memcheck "$small:$attention"
  run "racecheck" 45 sanitized racecheck "$racing:$attention"
  run "profile of 1.3B" 40 steps_of_1_3b --rounds=2 --profile="$results/profile.json"
  run "steps of 400M" 50 time_steps 25 4.7 400M "PRE_NORM SIAMESE_HYBRID_PRE SIAMESE_POST_PRE" \
    --rounds=4 --json="$results/steps-400M.json"
  run "two streams and one" 50 time_steps 48 5.9 1.3B "PRE_NORM SIAMESE_HYBRID_PRE" \
    --rounds=4 --json="$results/streams-1.3B.json"
  TWINSTREAM_EXHAUSTIVE=1 run "golden files, every layout" 60 training \
    'DeviceTraining.OfADenseModel*:DeviceTraining.OfAMixtureOfExperts*'
  run "against PyTorch" 60 against_torch
}

part_end=$((deadline < 20 ? deadline : 20))
if ! card >"$results/card.txt"; then
  echo "gpu_check.sh: nvidia-smi shows no card" >&2
  exit 1
fi
free_mib=$(sed -n '1s/.*, *\([0-9]*\) MiB$/\1/p' "$results/card.txt")
run "CUDA backend" 150 backend
# shellcheck disable=SC2154 # part.sh's
works=${part_results[0]}
if [[ $works == ok ]]; then all_parts; fi
report
# shellcheck disable=SC2154 # part.sh's
[[ $works == ok && $part_failures -eq 0 ]]
