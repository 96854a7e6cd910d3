// Operations on whole tensors, element by element, on a CUDA device.
#include <algorithm>

#include "core/activation_type.h"
#include "core/cuda/kernel.h"
#include "core/cuda/ops.h"

namespace twinstream {
namespace {

using gpu::Launch;

constexpr int kThreads = 256;

// Blocks of kThreads threads for `items` of them, at most so many that they run in a few waves.
unsigned BlocksFor(int64_t items, int multiprocessors) {
  return static_cast<unsigned>(
      std::min<int64_t>((items + kThreads - 1) / kThreads, int64_t{multiprocessors} * 32));
}

// This thread's first item, and the distance to its next.
__device__ int64_t FirstItem() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ int64_t ItemStride() { return int64_t{gridDim.x} * blockDim.x; }

template <class T>
__global__ void AddKernel(T* out, const T* a, int64_t elements) {
  constexpr int kWidth = gpu::kPack<T>;
  const int64_t packs = elements / kWidth;
  for (int64_t i = FirstItem(); i < packs; i += ItemStride()) {
    gpu::Pack<T> sum = gpu::LoadPack(out + i * kWidth);
    const gpu::Pack<T> addend = gpu::LoadPack(a + i * kWidth);
    for (int j = 0; j < kWidth; ++j) sum.values[j] += addend.values[j];
    gpu::StorePack(out + i * kWidth, sum);
  }
  for (int64_t i = packs * kWidth + FirstItem(); i < elements; i += ItemStride()) {
    out[i] = static_cast<float>(out[i]) + static_cast<float>(a[i]);
  }
}

}  // namespace

void CudaOps::Add(Tensor out, Tensor a) const {
  Check(out.elements() == a.elements(), "sum of %s and %s", out.shape(), a.shape());
  const int64_t elements = out.elements();
  if (elements == 0) return;
  WithActivationType(out.dtype(), [&]<class T>(std::type_identity<T>) {
    Launch(
        "Add", AddKernel<T>,
        {.blocks = BlocksFor(elements / gpu::kPack<T> + 1, multiprocessors_), .threads = kThreads},
        stream_, out.As<T>(), static_cast<const T*>(a.As<T>()), elements);
  });
}

}  // namespace twinstream
