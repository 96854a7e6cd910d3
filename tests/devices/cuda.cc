// A card, and the main of the tests that need one.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "tests/devices/uploaded_ops.h"
#include "tests/testing/tested_device.h"
#include "tests/testing/tested_ops.h"

namespace twinstream::testing {

const Ops& TestedOps() {
  // Never destroyed: what CUDA's libraries made in their first calls is gone before it would be.
  static Device& device = *MakeDevice("cuda").value().release();
  static const UploadedOps ops(device);
  return ops;
}

DeviceMaker TestedDevices() {
  return [](int rank) { return MakeDevice("cuda", {.local_rank = rank}).value(); };
}

}  // namespace twinstream::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (const auto device = twinstream::MakeDevice("cuda"); !device.ok()) {
    std::printf("SKIPPED: nothing is tested on a card: %s\n",
                std::string(device.status().message()).c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
