// The main of tests of one instruction set's kernels (tests/core/cpu).
#include <gtest/gtest.h>

#include <cstdio>

#include "core/cpu/device.h"
#include "core/cpu/small_product.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  constexpr bool kNeedsAvx512 = twinstream::TWINSTREAM_CPU_ISA::kMultipliesPairs;
  if (kNeedsAvx512 && !twinstream::HasAvx512Bf16()) {
    std::puts("SKIPPED: this machine has no AVX-512 with bf16 to run these kernels");
    return 77;
  }
  return RUN_ALL_TESTS();
}
