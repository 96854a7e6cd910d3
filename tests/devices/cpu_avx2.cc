// The CPU as one without AVX-512, and the main of the tests that are for machines with it.
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
  if (!twinstream::HasAvx512()) {
    std::puts("SKIPPED: the kernels of AVX2 are those that all tests here run, without AVX-512");
    return 77;
  }
  return RUN_ALL_TESTS();
}
