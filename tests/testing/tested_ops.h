// The device whose operations a test of tests/core examines: the program it is linked into decides
// (tests/CMakeLists.txt), so that one source tests every backend. Its tensors are in host memory.
#pragma once

#include "core/ops.h"

namespace twinstream::testing {

const Ops& TestedOps();

}  // namespace twinstream::testing
