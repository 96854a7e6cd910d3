#include "core/cuda/emulated/device.h"
#include "tests/devices/uploaded_ops.h"
#include "tests/testing/tested_device.h"
#include "tests/testing/tested_ops.h"

namespace twinstream::testing {

const Ops& TestedOps() {
  static const std::unique_ptr<Device> device = MakeEmulatedDevice();
  static const UploadedOps ops(*device);
  return ops;
}

DeviceMaker TestedDevices() {
  return [](int /*rank*/) { return MakeEmulatedDevice(); };
}

}  // namespace twinstream::testing
