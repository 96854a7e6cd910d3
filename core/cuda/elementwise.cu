// Operations on whole tensors, element by element, on a CUDA device. Each moves its tensors once;
// that is its floor: of n elements Add 3 n SizeOf(T), Cast n (SizeOf(To) + SizeOf(From)), Scale 8
// n, SumOfSquares 4 n bytes.
#include <algorithm>

#include "core/activation_type.h"
#include "core/cuda/kernel.h"
#include "core/cuda/ops.h"
#include "core/op_checks.h"

namespace twinstream {
namespace {

using gpu::ForEachPack;
using gpu::Launch;
using gpu::LoadValues;
using gpu::ShapeFor;
using gpu::StoreValues;

template <class T>
__global__ void AddKernel(T* out, const T* a, int64_t elements) {
  ForEachPack<gpu::kPack<T>>(gpu::ShareOfGrid(), elements, gpu::Aligned(out, a),
                             [=]<int kWidth>(std::integral_constant<int, kWidth>, int64_t i) {
                               float sum[kWidth], addend[kWidth];
                               LoadValues(sum, out + i);
                               LoadValues(addend, a + i);
                               for (int j = 0; j < kWidth; ++j) sum[j] += addend[j];
                               StoreValues(out + i, sum);
                             });
}

constexpr int kCastWidth = 4;  // 16 bytes of float32

template <class To, class From>
__global__ void CastKernel(To* out, const From* in, int64_t elements) {
  ForEachPack<kCastWidth>(gpu::ShareOfGrid(), elements, gpu::Aligned(out, in),
                          [=]<int kWidth>(std::integral_constant<int, kWidth>, int64_t i) {
                            float values[kWidth];
                            LoadValues(values, in + i);
                            StoreValues(out + i, values);
                          });
}

__global__ void ScaleKernel(float* out, float factor, int64_t elements) {
  ForEachPack<gpu::kPack<float>>(gpu::ShareOfGrid(), elements, gpu::Aligned(out),
                                 [=]<int kWidth>(std::integral_constant<int, kWidth>, int64_t i) {
                                   float values[kWidth];
                                   LoadValues(values, out + i);
                                   for (float& value : values) value *= factor;
                                   StoreValues(out + i, values);
                                 });
}

// Blocks of SumOfSquares: enough to fill a card, but as many on every card, and so the same bits.
constexpr int kSumBlocks = 1024;
constexpr int kSumThreads = 256;
constexpr int64_t kSumSharedBytes = kSumThreads / gpu::kWarpLanes * sizeof(double);

// partials[block]: of the block's share.
__global__ void PartialSumsOfSquaresKernel(double* partials, const float* values,
                                           int64_t elements) {
  double sum = 0;
  ForEachPack<gpu::kPack<float>>(gpu::ShareOfGrid(), elements, gpu::Aligned(values),
                                 [&]<int kWidth>(std::integral_constant<int, kWidth>, int64_t i) {
                                   float pack[kWidth];
                                   LoadValues(pack, values + i);
                                   for (const double value : pack) sum += value * value;
                                 });
  sum = gpu::BlockSum(sum, gpu::SharedMemory<double>());
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// sum = the sum of `count` partials; one block.
__global__ void SumPartialsKernel(double* sum, const double* partials, int count) {
  double total = 0;
  for (int i = gpu::ThisThread(); i < count; i += kSumThreads) total += partials[i];
  total = gpu::BlockSum(total, gpu::SharedMemory<double>());
  if (threadIdx.x == 0) *sum = total;
}

}  // namespace

void CudaOps::Add(Tensor out, Tensor a) const {
  CheckAdd(out, a);
  const int64_t elements = out.elements();
  if (elements == 0) return;
  WithActivationType(out.dtype(), [&]<class T>(std::type_identity<T>) {
    Launch("Add", AddKernel<T>, ShapeFor(elements / gpu::kPack<T> + 1, multiprocessors_), stream_,
           out.As<T>(), a.As<T>(), elements);
  });
}

void CudaOps::Cast(Tensor out, Tensor in) const {
  CheckCast(out, in);
  const int64_t elements = out.elements();
  if (elements == 0) return;
  WithActivationType(out.dtype(), [&]<class To>(std::type_identity<To>) {
    WithActivationType(in.dtype(), [&]<class From>(std::type_identity<From>) {
      Launch("Cast", CastKernel<To, From>, ShapeFor(elements / kCastWidth + 1, multiprocessors_),
             stream_, out.As<To>(), in.As<From>(), elements);
    });
  });
}

void CudaOps::Scale(Tensor out, float factor) const {
  const int64_t elements = out.elements();
  if (elements == 0) return;
  Launch("Scale", ScaleKernel, ShapeFor(elements / gpu::kPack<float> + 1, multiprocessors_),
         stream_, out.As<float>(), factor, elements);
}

void CudaOps::Zero(Tensor out) const {
  if (out.elements() > 0) gpu::Clear(out.data(), out.bytes(), stream_);
}

void CudaOps::SumOfSquares(Tensor sum, Tensor values) const {
  constexpr int64_t kElements = int64_t{kSumThreads} * gpu::kPack<float> * 4;  // of a block
  const int64_t elements = values.elements();
  const auto blocks = static_cast<int>(
      std::clamp<int64_t>(gpu::CeilingOfQuotient(elements, kElements), 1, kSumBlocks));
  auto* const partials = workspace_.As<double>(blocks * int64_t{sizeof(double)});
  Launch("SumOfSquares", PartialSumsOfSquaresKernel,
         {.blocks = static_cast<unsigned>(blocks),
          .threads = kSumThreads,
          .shared_bytes = kSumSharedBytes},
         stream_, partials, values.As<float>(), elements);
  Launch("SumOfSquares", SumPartialsKernel,
         {.blocks = 1, .threads = kSumThreads, .shared_bytes = kSumSharedBytes}, stream_,
         sum.As<double>(), partials, blocks);
}

}  // namespace twinstream
