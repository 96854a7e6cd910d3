// Floors: RoundValues moves 6 bytes per element, SumRoundedValues 2 per addend and 4 per sum. Each
// addend crosses the network too, which is several times slower than memory: neighbouring threads
// take neighbouring elements, and that is enough.
#include "core/cuda/kernel.h"
#include "core/cuda/rounded_sums.h"

namespace twinstream {
namespace {

constexpr int kMultiprocessors = 128;  // about those of a card; no result depends on it

__global__ void RoundValuesKernel(BFloat16* to, const float* from, int64_t elements) {
  const gpu::Share share = gpu::ShareOfGrid();
  for (int64_t i = share.first; i < elements; i += share.stride) to[i] = from[i];
}

__global__ void SumRoundedValuesKernel(float* sums, const BFloat16* addends, int ranks,
                                       int64_t stride, int64_t elements) {
  const gpu::Share share = gpu::ShareOfGrid();
  for (int64_t i = share.first; i < elements; i += share.stride) {
    float sum = static_cast<float>(addends[i]);
    for (int r = 1; r < ranks; ++r) sum += static_cast<float>(addends[r * stride + i]);
    sums[i] = sum;
  }
}

}  // namespace

void RoundValues(BFloat16* to, const float* from, int64_t elements, gpu::Stream stream) {
  if (elements == 0) return;
  gpu::Launch("RoundValues", RoundValuesKernel, gpu::ShapeFor(elements, kMultiprocessors), stream,
              to, from, elements);
}

void SumRoundedValues(float* sums, const BFloat16* addends, int ranks, int64_t stride,
                      int64_t elements, gpu::Stream stream) {
  if (elements == 0) return;
  gpu::Launch("SumRoundedValues", SumRoundedValuesKernel, gpu::ShapeFor(elements, kMultiprocessors),
              stream, sums, addends, ranks, stride, elements);
}

}  // namespace twinstream
