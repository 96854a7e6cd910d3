#include "core/cpu/ops.h"
#include "tests/testing/tested_ops.h"

namespace twinstream::testing {

const Ops& TestedOps() {
  static const CpuOps ops;
  return ops;
}

}  // namespace twinstream::testing
