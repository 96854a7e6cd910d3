#include "core/cpu/ops.h"
#include "tests/testing/tested_device.h"
#include "tests/testing/tested_ops.h"

namespace twinstream::testing {

const Ops& TestedOps() {
  static const CpuOps ops;
  return ops;
}

DeviceMaker TestedDevices() { return CpuDevices(); }

}  // namespace twinstream::testing
