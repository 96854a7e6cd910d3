// EmulatedDevice: the CUDA backend's kernels on the CPU (emulated/gpu/emulator.h), for tests.
#pragma once

#include <memory>

#include "core/device.h"

namespace twinstream {

// Memory is the host's. Writes behind the end of an allocation end the process: at once when they
// are 16 bytes or more behind it, else when it is freed.
std::unique_ptr<Device> MakeEmulatedDevice();

}  // namespace twinstream
