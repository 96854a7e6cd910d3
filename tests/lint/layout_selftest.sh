#!/usr/bin/env bash
# layout_test.sh on a small tree: nothing is reported while the tree keeps the rules, and one violation
# of each rule is reported at its place. Usage: tests/lint/layout_selftest.sh
set -euo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cp "$repository/.clang-format" "$tree"
mkdir -p "$tree"/{core/cpu,core/cuda/native/gpu,core/cuda/emulated/gpu,proto,parallel,models,launch,tests,deploy}

write() { # write FILE LINE...
  printf '%s\n' "${@:2}" >"$tree/$1"
}

lint() {
  bash "$repository/tests/lint/layout_test.sh" "$tree" "$tree/build/generated" >"$tree/output.txt" 2>&1
}

failures=0
expect() { # expect PLACE RULE
  grep -q "^$1: \[$2\]" "$tree/output.txt" || {
    echo "not reported: $1 [$2]"
    failures=$((failures + 1))
  }
}

write core/good.h "// A header." "#pragma once" "" "inline int Good() { return 1; }"
write core/cpu/ops.h "#pragma once"
write core/backends.cc '#include "core/cpu/ops.h"' "#include \"core/good.h\""
write core/cuda/native/gpu/primitives.h "#pragma once" "#include <cuda_runtime.h>" "#include <no_such_header.h>"
write core/cuda/emulated/cuda_runtime.h "#pragma once" "using cudaStream_t = int*;"
write core/cuda/emulated/gpu/primitives.h "#pragma once"
write core/cuda/good_kernel.h "#pragma once" '#include "gpu/primitives.h"' "" "__device__ inline int Good() { return 1; }"
write core/cuda/good_owner.h "#pragma once" "#include <cuda_runtime.h>" "" "inline cudaStream_t Good() { return nullptr; }"
write core/cuda/good.cu "#include <cuda_runtime.h>" "#include <nccl.h>" "" '#include "core/cuda/good_kernel.h"'
write parallel/good.cc '#include "core/good.h"'
write parallel/mpi_transport.cc "#include <mpi.h>"
write deploy/good.sh "#!/usr/bin/env bash" "echo good"
if ! lint; then
  echo "a tree that keeps the rules is refused:"
  cat "$tree/output.txt"
  exit 1
fi

write core/upward.cc '#include "core/good.h"' '#include "parallel/good.h"'
write models/relative.cc '#include "good.h"'
write models/parent.cc '#include "../core/good.h"'
write models/angle.cc "#include <core/good.h>"
write parallel/backend.cc '#include "core/cpu/ops.h"'
write models/vendor.cc "#include <mpi.h>"
write core/omp.cc "#include <omp.h>"
write launch/cuda.cc "#include <cuda_runtime.h>"
write parallel/nccl.cc "#include <nccl.h>"
write core/cuda/not_alone.h "#pragma once" "" "inline dim3 Blocks() { return {}; }"
write launch/macro.cc "int Before();" "#define TWICE(x) (2 * (x))"
write core/conditional.cc "#ifdef __AVX2__" "#endif"
write core/no_pragma.h "// A header." "inline int Twice(int x) { return 2 * x; }"
write core/not_alone.h "#pragma once" "" "inline std::string Name() { return {}; }"
write core/late.h "#pragma once"
write core/late.cc '#include "core/good.h"' '#include "core/late.h"'
write core/format.cc "int  Wide();"
write core/cuda/format.cu "int  Wide();"
write core/ascii.cc "// caf$(printf '\303\251')"
write deploy/broken.sh "#!/usr/bin/env bash" "if true; then"
write deploy/quoting.sh "#!/usr/bin/env bash" "cd /tmp"
for ((i = 0; i < 401; i++)); do echo "// $i"; done >"$tree/launch/long.cc"

if lint; then
  echo "a tree with violations passes"
  exit 1
fi
expect core/upward.cc:2 folder-chain
expect models/relative.cc:1 folder-chain
expect models/parent.cc:1 folder-chain
expect models/angle.cc:1 folder-chain
expect parallel/backend.cc:1 folder-chain
expect models/vendor.cc:1 vendor-header
expect core/omp.cc:1 vendor-header
expect launch/cuda.cc:1 vendor-header
expect parallel/nccl.cc:1 vendor-header
expect launch/macro.cc:2 macro
expect core/conditional.cc:1 conditional
expect core/no_pragma.h:2 pragma-once
expect core/not_alone.h:1 header-alone
expect core/cuda/not_alone.h:1 header-alone
expect core/late.cc:1 own-header-first
expect core/ascii.cc:1 ascii
expect launch/long.cc:401 file-length
expect deploy/broken.sh:3 script
if command -v shellcheck >/dev/null; then expect deploy/quoting.sh:2 script; fi
if command -v clang-format-14 >/dev/null; then
  expect core/format.cc:1 format
  expect core/cuda/format.cu:1 format
fi
unexpected=$(grep -E '^[^ ]+good[^ ]*: \[' "$tree/output.txt" || true)
if [[ -n $unexpected ]]; then
  echo "reported without a reason: $unexpected"
  failures=$((failures + 1))
fi
if [[ $failures -gt 0 ]]; then
  cat "$tree/output.txt"
  exit 1
fi
echo "every rule reports its violation"
