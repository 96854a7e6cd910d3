// The network that joins CUDA cards: NCCL.
#pragma once

#include <memory>

#include "core/device_collectives.h"

namespace twinstream {

class CudaDevice;

// Of a device on the calling thread's card. It outlives its network.
std::unique_ptr<DeviceNetwork> MakeCudaNetwork(const CudaDevice& device);

}  // namespace twinstream
