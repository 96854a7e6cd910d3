// The CPU as one without AVX-512, and the main of the tests that are for machines with it. oneDNN's
// part is the environment's: ONEDNN_MAX_CPU_ISA=AVX2.
#include <gtest/gtest.h>

#include <cstdio>

#include "core/cpu/device.h"
#include "tests/testing/tested_device.h"
#include "tests/testing/tested_ops.h"

namespace twinstream::testing {

const Ops& TestedOps() {
  static const std::unique_ptr<Device> device = avx2::MakeCpuDevice(/*threads=*/0);
  return device->ops();
}

DeviceMaker TestedDevices() {
  return [](int /*rank*/) { return avx2::MakeCpuDevice(/*threads=*/0); };
}

}  // namespace twinstream::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!twinstream::HasAvx512Bf16()) {
    std::puts("SKIPPED: without AVX-512 and bf16 all tests here run the kernels of AVX2");
    return 77;
  }
  return RUN_ALL_TESTS();
}
