// The devices on which a test of tests/system trains: the program it is linked into decides
// (tests/CMakeLists.txt), so that one source tests every backend.
#pragma once

#include "tests/testing/rank_devices.h"

namespace twinstream::testing {

// Ranks share a card where there are more of them than cards.
DeviceMaker TestedDevices();

}  // namespace twinstream::testing
