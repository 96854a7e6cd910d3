#!/usr/bin/env bash
# One program runs on machines with and without AVX-512: its instructions stand in functions of
# namespace avx512 alone, which core/backends.cc does not call on the latter.
# Usage: instruction_sets_test.sh FOLDER-OF-TEST-PROGRAMS
set -euo pipefail
program=$1/../twinstream
avx512=6avx512 # the namespace, as names are mangled

# Of AVX-512 alone are registers zmm, k and all from number 16 on.
functions=$(objdump --disassemble --no-show-raw-insn "$program" |
  awk '/^[0-9a-f]+ <.*>:$/ {name = $0}
       /%zmm|%k[0-7]|%[xy]mm(1[6-9]|2[0-9]|3[01])/ && !(name in seen) {seen[name]; print name}')
if ! grep -q $avx512 <<<"$functions"; then
  echo "no function of namespace avx512 has instructions of AVX-512: what is disassembled?"
  exit 1
fi
if grep -v $avx512 <<<"$functions"; then
  echo "these functions of $program have instructions of AVX-512 and may run without it"
  exit 1
fi
echo "$(wc -l <<<"$functions") functions of namespace avx512, and no other, have instructions of AVX-512"
