// on_instruction_set NAME PROGRAM...: runs the program where the machine has the instruction set
// that CPU kernels are named after.
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "core/cpu/device.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("on_instruction_set: no program\n", stderr);
    return 2;
  }
  if (argv[1] == std::string_view("avx512") && !twinstream::HasAvx512Bf16()) {
    std::puts("SKIPPED: this machine has no AVX-512 with bf16 to run these kernels");
    return 77;
  }
  execv(argv[2], argv + 2);
  std::perror(argv[2]);
  return 2;
}
