// The stream of a device, and what host code asks of it without a kernel. emulated/gpu/stream.h is
// its twin for the CPU: CMake chooses one by include path.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "core/cuda/check.h"

namespace twinstream::gpu {

using Stream = cudaStream_t;

// Zeroes memory of the device, in the stream's order.
inline void Clear(std::byte* data, int64_t bytes, Stream stream) {
  Check(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream), "cudaMemsetAsync");
}

}  // namespace twinstream::gpu
