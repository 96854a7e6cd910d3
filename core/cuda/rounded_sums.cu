// Floors: RoundValues moves 6 bytes per element, SumRoundedValues 2 per addend and 4 per sum. Each
// addend crosses the network too, which is several times slower than memory: neighbouring threads
// take neighbouring elements, and that is enough.
#include <algorithm>

#include "core/cuda/rounded_sums.h"

namespace twinstream {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 4096;

gpu::LaunchShape ShapeFor(int64_t elements) {
  return {
      .blocks = static_cast<unsigned>(std::min((elements + kThreads - 1) / kThreads, kMostBlocks)),
      .threads = kThreads};
}

__device__ int64_t First() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ int64_t Stride() { return int64_t{gridDim.x} * blockDim.x; }

__global__ void RoundValuesKernel(BFloat16* to, const float* from, int64_t elements) {
  for (int64_t i = First(); i < elements; i += Stride()) to[i] = from[i];
}

__global__ void SumRoundedValuesKernel(float* sums, const BFloat16* addends, int ranks,
                                       int64_t stride, int64_t elements) {
  for (int64_t i = First(); i < elements; i += Stride()) {
    float sum = static_cast<float>(addends[i]);
    for (int r = 1; r < ranks; ++r) sum += static_cast<float>(addends[r * stride + i]);
    sums[i] = sum;
  }
}

}  // namespace

void RoundValues(BFloat16* to, const float* from, int64_t elements, gpu::Stream stream) {
  if (elements == 0) return;
  gpu::Launch("RoundValues", RoundValuesKernel, ShapeFor(elements), stream, to, from, elements);
}

void SumRoundedValues(float* sums, const BFloat16* addends, int ranks, int64_t stride,
                      int64_t elements, gpu::Stream stream) {
  if (elements == 0) return;
  gpu::Launch("SumRoundedValues", SumRoundedValuesKernel, ShapeFor(elements), stream, sums, addends,
              ranks, stride, elements);
}

}  // namespace twinstream
