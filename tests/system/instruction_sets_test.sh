#!/usr/bin/env bash
# One program runs on machines with and without AVX-512: all that is compiled for one instruction set is
# reached through its namespace alone, and only the kernels of namespace avx512 have instructions of
# AVX-512. Usage: instruction_sets_test.sh FOLDER-OF-TEST-PROGRAMS
set -euo pipefail
build=$1/..

for instruction_set in avx2 avx512; do
  symbols=$(nm --defined-only "$build/twinstream_core_$instruction_set.o" | awk '$2 ~ /[A-Zu]/ {print $3}')
  if ! grep -q MakeCpuDevice <<<"$symbols"; then
    echo "the kernels of $instruction_set do not define MakeCpuDevice: what is in the object?"
    exit 1
  fi
  if grep -v "$instruction_set" <<<"$symbols"; then
    echo "the linker may take these, compiled for $instruction_set, for all machines (core/cpu/join_objects.sh)"
    exit 1
  fi
done

# Of AVX-512 alone are registers zmm, k and all from number 16 on.
functions=$(objdump --disassemble --no-show-raw-insn "$build/twinstream" |
  awk '/^[0-9a-f]+ <.*>:$/ {name = $0}
       /%zmm|%k[0-7]|%[xy]mm(1[6-9]|2[0-9]|3[01])/ && !(name in seen) {seen[name]; print name}')
if ! grep -q avx512 <<<"$functions"; then
  echo "no kernel of namespace avx512 has instructions of AVX-512: what is disassembled?"
  exit 1
fi
if grep -v avx512 <<<"$functions"; then
  echo "these functions of $build/twinstream have instructions of AVX-512 and may run without it"
  exit 1
fi
echo "$(wc -l <<<"$functions") functions of namespace avx512, and no other, have instructions of AVX-512"
