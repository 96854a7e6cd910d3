// EmulatedDevice: the CUDA backend's kernels on the CPU (emulated/gpu/emulator.h), for tests.
#pragma once

#include <cstdint>
#include <memory>

#include "core/cuda/workspace.h"
#include "core/device.h"

namespace twinstream {

// Memory is the host's. A write behind the end of an allocation ends the process: at once when it
// is 16 bytes or more behind it, else when it is freed, as does a write less than a page in front.
std::unique_ptr<Device> MakeEmulatedDevice(int64_t workspace_bytes = kWorkspaceBytes);

}  // namespace twinstream
