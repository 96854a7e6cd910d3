#include "core/device.h"
#include "tests/testing/tested_device.h"
#include "tests/testing/tested_ops.h"

namespace twinstream::testing {

const Ops& TestedOps() {
  static const std::unique_ptr<Device> device = MakeDevice("cpu").value();
  return device->ops();
}

DeviceMaker TestedDevices() { return CpuDevices(); }

}  // namespace twinstream::testing
