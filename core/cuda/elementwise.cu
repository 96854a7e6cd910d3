// Operations on whole tensors, element by element, on a CUDA device. Each moves its tensors once;
// that is its floor: of n elements Add 3 n SizeOf(T), Cast n (SizeOf(To) + SizeOf(From)), Scale 8
// n, SumsOfSquares 4 n bytes.
#include <algorithm>

#include "absl/types/span.h"
#include "core/activation_type.h"
#include "core/cuda/kernel.h"
#include "core/cuda/ops.h"
#include "core/cuda/tensor_list.h"
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

// Blocks of a tensor in SumsOfSquares: enough to fill a card, but as many on every card, and so the
// same bits.
constexpr int kSumBlocks = 1024;
constexpr int kSumThreads = 256;
constexpr int64_t kSumSharedBytes = kSumThreads / gpu::kWarpLanes * sizeof(double);

struct SquaredArray {
  const float* values;
  int64_t elements;
};

int64_t SumBlocksOf(int64_t elements) {
  constexpr int64_t kElements = int64_t{kSumThreads} * gpu::kPack<float> * 4;  // of a block
  return std::clamp<int64_t>(gpu::CeilingOfQuotient(elements, kElements), 1, kSumBlocks);
}

// partials[block]: of the block's share.
__global__ void PartialSumsOfSquaresKernel(double* partials, gpu::TensorList<SquaredArray> list) {
  const int tensor = gpu::ThisTensor(list);
  const SquaredArray array = list.items[tensor];
  double sum = 0;
  ForEachPack<gpu::kPack<float>>(gpu::ShareOfTensor(list, tensor), array.elements,
                                 gpu::Aligned(array.values),
                                 [&]<int kWidth>(std::integral_constant<int, kWidth>, int64_t i) {
                                   float pack[kWidth];
                                   LoadValues(pack, array.values + i);
                                   for (const double value : pack) sum += value * value;
                                 });
  sum = gpu::BlockSum(sum, gpu::SharedMemory<double>());
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// sums[tensor] = the sum of its blocks' partials; a block for every tensor.
__global__ void SumPartialsKernel(double* sums, const double* partials,
                                  gpu::TensorList<SquaredArray> list) {
  const unsigned tensor = blockIdx.x, first = list.first_blocks[tensor];
  const int count = static_cast<int>(list.first_blocks[tensor + 1] - first);
  double total = 0;
  for (int i = gpu::ThisThread(); i < count; i += kSumThreads) total += partials[first + i];
  total = gpu::BlockSum(total, gpu::SharedMemory<double>());
  if (threadIdx.x == 0) sums[tensor] = total;
}

}  // namespace

void CudaOps::Add(Tensor out, Tensor a) const {
  CheckAdd(out, a);
  const int64_t elements = out.elements();
  if (elements == 0) return;
  WithActivationType(out.dtype(), [&]<class T>(std::type_identity<T>) {
    Launch("Add", AddKernel<T>, ShapeFor(elements / gpu::kPack<T> + 1, card_.multiprocessors),
           stream_, out.As<T>(), a.As<T>(), elements);
  });
}

void CudaOps::Cast(Tensor out, Tensor in) const {
  CheckCast(out, in);
  const int64_t elements = out.elements();
  if (elements == 0) return;
  WithActivationType(out.dtype(), [&]<class To>(std::type_identity<To>) {
    WithActivationType(in.dtype(), [&]<class From>(std::type_identity<From>) {
      Launch("Cast", CastKernel<To, From>,
             ShapeFor(elements / kCastWidth + 1, card_.multiprocessors), stream_, out.As<To>(),
             in.As<From>(), elements);
    });
  });
}

void CudaOps::Scale(Tensor out, float factor) const {
  const int64_t elements = out.elements();
  if (elements == 0) return;
  Launch("Scale", ScaleKernel, ShapeFor(elements / gpu::kPack<float> + 1, card_.multiprocessors),
         stream_, out.As<float>(), factor, elements);
}

void CudaOps::Zero(Tensor out) const {
  if (out.elements() > 0) gpu::Clear(out.data(), out.bytes(), stream_);
}

void CudaOps::SumsOfSquares(Tensor sums, absl::Span<const Tensor> tensors) const {
  CheckSumsOfSquares(sums, tensors);
  using List = gpu::TensorList<SquaredArray>;
  for (size_t begin = 0; begin < tensors.size(); begin += List::kMost) {
    List list;
    for (const Tensor& values : tensors.subspan(begin, List::kMost)) {
      list.Add({values.As<float>(), values.elements()}, SumBlocksOf(values.elements()));
    }
    auto* const partials = workspace_.As<double>(list.blocks() * int64_t{sizeof(double)});
    Launch("SumsOfSquares", PartialSumsOfSquaresKernel,
           {.blocks = list.blocks(), .threads = kSumThreads, .shared_bytes = kSumSharedBytes},
           stream_, partials, list);
    Launch("SumsOfSquares", SumPartialsKernel,
           {.blocks = static_cast<unsigned>(list.count),
            .threads = kSumThreads,
            .shared_bytes = kSumSharedBytes},
           stream_, sums.As<double>() + begin, partials, list);
  }
}

}  // namespace twinstream
