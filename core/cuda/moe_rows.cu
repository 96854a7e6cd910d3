// Rows on their way to the experts and back, on a CUDA device.
#include <algorithm>

#include "core/activation_type.h"
#include "core/cuda/kernel.h"
#include "core/cuda/ops.h"
#include "core/op_checks.h"

namespace twinstream {
namespace {

using gpu::Launch;

constexpr int kThreads = 256;
constexpr int kRowsOfBlock = kThreads / gpu::kWarpLanes;  // where a warp has a row

// A block for every row, with no more warps than the row has work for.
gpu::LaunchShape BlockPerRow(int64_t rows, int64_t columns, int width) {
  const int64_t warps = gpu::CeilingOfQuotient(columns, width * gpu::kWarpLanes);
  return {.blocks = static_cast<unsigned>(rows),
          .threads = static_cast<unsigned>(std::min<int64_t>(kThreads, warps * gpu::kWarpLanes))};
}

// Floor: one read and one write of the R rows (a token's row is read for each of its experts).
template <int kWidth, class T>
__global__ void GatherKernel(T* out, const T* in, const int32_t* choices, const float* weights,
                             int64_t columns, int k) {
  const int64_t r = blockIdx.x;
  const int32_t choice = choices[r];
  const T* const from = in + choice / k * columns;
  const float factor = weights == nullptr ? 1 : weights[choice];
  for (int64_t c = int64_t{threadIdx.x} * kWidth; c < columns; c += int64_t{blockDim.x} * kWidth) {
    float values[kWidth];
    gpu::LoadValues(values, from + c);
    for (int i = 0; i < kWidth; ++i) values[i] *= factor;
    gpu::StoreValues(out + r * columns + c, values);
  }
}

// Floor: one read of the R rows, one write of the N.
template <int kWidth, class T>
__global__ void CombineKernel(T* out, const T* in, const int32_t* rows, const float* weights,
                              int64_t columns, int k) {
  const int64_t n = blockIdx.x;
  for (int64_t c = int64_t{threadIdx.x} * kWidth; c < columns; c += int64_t{blockDim.x} * kWidth) {
    float sums[kWidth] = {};
    for (int j = 0; j < k; ++j) {
      const float factor = weights == nullptr ? 1 : weights[n * k + j];
      float values[kWidth];
      gpu::LoadValues(values, in + rows[n * k + j] * columns + c);
      for (int i = 0; i < kWidth; ++i) sums[i] += factor * values[i];
    }
    gpu::StoreValues(out + n * columns + c, sums);
  }
}

// Floor: one read of both. A warp for every row.
template <int kWidth, class T>
__global__ void ProductsKernel(float* out, const T* a, const T* b, int64_t rows, int64_t columns) {
  const int lane = gpu::ThisLane();
  const int64_t r = int64_t{blockIdx.x} * kRowsOfBlock + gpu::ThisWarp();
  if (r >= rows) return;
  float sum = 0;
  for (int64_t c = lane * kWidth; c < columns; c += gpu::kWarpLanes * kWidth) {
    float left[kWidth], right[kWidth];
    gpu::LoadValues(left, a + r * columns + c);
    gpu::LoadValues(right, b + r * columns + c);
    for (int i = 0; i < kWidth; ++i) sum += left[i] * right[i];
  }
  sum = gpu::WarpSum(sum);
  if (lane == 0) out[r] = sum;
}

}  // namespace

void CudaOps::GatherRows(Tensor out, Tensor in, Tensor choices, Tensor weights) const {
  CheckGatherRows(out, in, choices, weights);
  const int64_t R = out.dim(0), N = in.dim(0), C = in.dim(1);
  if (out.elements() == 0) return;
  WithActivationType(out.dtype(), [&]<class T>(std::type_identity<T>) {
    gpu::WithWidth(C, gpu::Aligned(out.data(), in.data()),
                   [&]<int kWidth>(std::integral_constant<int, kWidth>) {
                     Launch("GatherRows", GatherKernel<kWidth, T>, BlockPerRow(R, C, kWidth),
                            stream_, out.As<T>(), in.As<T>(), choices.As<int32_t>(),
                            weights ? weights.As<float>() : nullptr, C, static_cast<int>(R / N));
                   });
  });
}

void CudaOps::CombineRows(Tensor out, Tensor in, Tensor rows, Tensor weights) const {
  CheckCombineRows(out, in, rows, weights);
  const int64_t N = out.dim(0), C = out.dim(1), k = rows.dim(1);
  if (out.elements() == 0) return;
  WithActivationType(out.dtype(), [&]<class T>(std::type_identity<T>) {
    gpu::WithWidth(C, gpu::Aligned(out.data(), in.data()),
                   [&]<int kWidth>(std::integral_constant<int, kWidth>) {
                     Launch("CombineRows", CombineKernel<kWidth, T>, BlockPerRow(N, C, kWidth),
                            stream_, out.As<T>(), in.As<T>(), rows.As<int32_t>(),
                            weights ? weights.As<float>() : nullptr, C, static_cast<int>(k));
                   });
  });
}

void CudaOps::RowProducts(Tensor out, Tensor a, Tensor b) const {
  CheckRowProducts(out, a, b);
  const int64_t R = a.dim(0), C = a.dim(1);
  if (R == 0) return;
  WithActivationType(a.dtype(), [&]<class T>(std::type_identity<T>) {
    gpu::WithWidth(
        C, gpu::Aligned(a.data(), b.data()), [&]<int kWidth>(std::integral_constant<int, kWidth>) {
          Launch("RowProducts", ProductsKernel<kWidth, T>,
                 {.blocks = static_cast<unsigned>(gpu::CeilingOfQuotient(R, kRowsOfBlock)),
                  .threads = kThreads},
                 stream_, out.As<float>(), a.As<T>(), b.As<T>(), R, C);
        });
  });
}

}  // namespace twinstream
