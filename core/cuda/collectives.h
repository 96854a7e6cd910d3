// The network that joins CUDA cards: NCCL.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>

#include "core/device_collectives.h"

namespace twinstream {

// Of a device whose work is in the order of `stream`, on the card of this number, which is the
// calling thread's. beside: makes another device on it.
std::unique_ptr<DeviceNetwork> MakeCudaNetwork(int card, cudaStream_t stream,
                                               std::function<std::unique_ptr<Device>()> beside);

}  // namespace twinstream
