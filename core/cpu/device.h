// CpuDevice: host memory, everything immediate.
#pragma once

#include <memory>

#include "core/device.h"

namespace twinstream {

// threads: compute threads; 0 leaves OpenMP's default.
std::unique_ptr<Device> MakeCpuDevice(int threads);

}  // namespace twinstream
