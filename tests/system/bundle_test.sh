#!/bin/bash
# The bundle for machines with a card: unpacked anywhere it runs ranks under its own mpirun, with
# libraries and plugins of its own, its programs run on a card (an emulated one), and gpu_check.sh says
# that this machine has none.
# Usage: bundle_test.sh FOLDER_OF_THE_TEST_PROGRAMS
set -u
deploy=$(realpath "$(dirname "$0")/../../deploy")
if ! [ "$1" -ef "$deploy/../build/tests" ] || ! [ -f "$1/../twinstream_cuda.so" ]; then
  echo "SKIPPED: bundle_test needs the CUDA backend in the folder build"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
output=$folder/output

fail() { # fail MESSAGE
  echo "FAILED: $*. The output:"
  sed 's/^/    /' "$output"
  exit 1
}

bash "$deploy/bundle.sh" "$folder/bundle.tar.xz" >"$output" 2>&1 || fail "bundle.sh"
mkdir "$folder/else where"
tar -C "$folder/else where" -xJf "$folder/bundle.tar.xz" || fail "tar"
bundle="$folder/else where/twinstream-bundle"

# Its programs in an environment of nothing else, Open MPI's own folders out of sight where root may.
inside() { # inside COMMAND: in a shell that has sourced env.sh
  local shell="cd '$folder' && . '$bundle/env.sh' && $1"
  if unshare --mount true 2>/dev/null; then
    local hide='for f in /usr/lib/*/openmpi /usr/share/openmpi /etc/openmpi; do mount -t tmpfs none $f; done'
    unshare --mount bash -c "$hide; env -i HOME=/tmp PATH=/usr/bin:/bin bash -c \"\$1\"" _ "$shell"
  else
    env -i HOME=/tmp PATH=/usr/bin:/bin bash -c "$shell"
  fi >"$output" 2>&1
}

inside "ldd '$bundle'/bin/* | grep '=> /' | grep -v twinstream-bundle | sort -u" || fail "ldd"
! grep -Ev 'lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s|cublasLt)\.so' "$output" ||
  fail "libraries of this machine"

# What gpu_check.sh compiles the backend from there is whole: its headers, and those of abseil and NCCL.
nvcc=$(sed -n 's/^NVCC:FILEPATH=//p' "$deploy/../build/CMakeCache.txt")
(cd "$bundle" && for source in core/cuda/*.{cu,cc}; do
  "$nvcc" -M -std=c++20 --expt-relaxed-constexpr -I. -Icore/cuda/native -Iinclude "$source" || exit 1
done) >"$output" 2>&1 || fail "headers of the backend's sources"
! tr -s ' ' '\n' <"$output" | grep -E '^/.*(/absl/|nccl)' || fail "headers of this machine"

cat >"$folder/job.textproto" <<'JOB'
name: "bundle"
model { residual: SIAMESE_HYBRID_PRE layers: 2 hidden: 32 heads: 2 ffn: 64 vocabulary: 256 sequence: 32 }
data { train { path: "text.bin" } }
optimizer { peak_lr: 1e-3 }
train { steps: 3 global_batch: 4 device: CPU }
parallel { tensor: 2 }
JOB
inside "twinstream prepare-data --input='$bundle/LICENSE' --output=text --tokenizer=bytes" ||
  fail "prepare-data"
ranks="OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 mpirun -np 2 --oversubscribe"
inside "$ranks '$bundle/bin/twinstream' verify job.textproto" || fail "two ranks"

# What gpu_check.sh runs, with the tests' module of the same source in place of the backend.
cp "$deploy/../build/core/cuda/emulated/twinstream_cuda.so" "$bundle/bin/"
on_card() { # on_card PATTERN COMMAND: ends well and says so
  inside "export OMP_NUM_THREADS=1 && $2" || fail "$2"
  grep -Eq -- "$1" "$output" || fail "$2: no line like: $1"
}
on_card 'PASSED .* [1-9][0-9]* test' "backends_test --gtest_filter='CudaDeviceTest.*'"
on_card 'PASSED .* [1-9][0-9]* test' "cuda_device_test --gtest_filter='DeviceTraining.*OfTheCpu'"
on_card '^worst parameter gradient .* ok ' \
  "$ranks '$bundle/bin/twinstream' verify job.textproto --override='train { device: CUDA precision: BF16 }'"
on_card '"replayed_steps": [1-9]' \
  "train_benchmark --device=CUDA --shape=tiny --rounds=1 --steps=2 --replay --json=steps.json && cat steps.json"
on_card '^SwiGluForward/tiny/BF16' \
  "ops_benchmark --device=cuda --benchmark_min_time=0.001 --benchmark_filter=^SwiGluForward/tiny/BF16"

echo 99.9 >"$bundle/glibc"
! inside "bash '$bundle/gpu_check.sh' '$bundle' results" || fail "a glibc of the future passes"
grep -q '^gpu_check.sh: the bundle needs glibc 99.9 and this host has 2' "$output" || fail "the glibc is not named"

if ! nvidia-smi >/dev/null 2>&1; then
  ! inside "bash '$bundle/gpu_check.sh' '$folder/bundle.tar.xz' results" || fail "a check without a card passes"
  grep -q '^gpu_check.sh: nvidia-smi shows no card$' "$output" || fail "what is missing is not said"
fi
