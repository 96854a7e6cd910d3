// Cross-entropy over a split vocabulary on a CUDA device: statistics of this rank's columns, their
// merge, the gradient. One block a row of logits.
#include <cmath>

#include "core/activation_type.h"
#include "core/cuda/kernel.h"
#include "core/cuda/ops.h"
#include "core/op_checks.h"

namespace twinstream {
namespace {

using gpu::Launch;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / gpu::kWarpLanes;
constexpr int kMergeThreads = 1024;

// Of some of a row's logits: the largest and the sum of exp(logit - Finite(largest)).
struct RunningSum {
  float largest = -INFINITY;
  float sum = 0;
};

// What is subtracted in an exponent: of no logits, or of logits that are all -inf, the sum is 0 and
// not NaN.
__device__ float Finite(float largest) { return largest == -INFINITY ? 0 : largest; }

// Online softmax (arXiv 1805.02867), one correction for all of `values`. NaN stays in the sum.
template <int kWidth>
__device__ void Include(RunningSum& running, const float (&values)[kWidth]) {
  const float before = running.largest;
  for (int i = 0; i < kWidth; ++i) running.largest = fmaxf(running.largest, values[i]);
  const float offset = Finite(running.largest);
  running.sum *= gpu::Exp(before - offset);
  for (int i = 0; i < kWidth; ++i) running.sum += gpu::Exp(values[i] - offset);
}

// Floor: one read of the logits, 4 N columns bytes.
template <int kWidth>
__global__ void StatisticsKernel(float* statistics, const float* logits, const int32_t* targets,
                                 int64_t columns, int64_t begin) {
  float* const shared = gpu::SharedMemory<float>();  // [2, kWarps]
  const int64_t n = blockIdx.x;
  const float* const row = logits + n * columns;
  RunningSum mine;
  for (int64_t j = int64_t{threadIdx.x} * kWidth; j < columns; j += kThreads * kWidth) {
    float values[kWidth];
    gpu::LoadValues(values, row + j);
    Include(mine, values);
  }
  const float largest = gpu::BlockMax(mine.largest, shared);
  const float sum =
      gpu::BlockSum(mine.sum * gpu::Exp(mine.largest - Finite(largest)), shared + kWarps);
  if (threadIdx.x != 0) return;
  const int64_t column = targets[n] - begin;
  statistics[3 * n] = largest;
  statistics[3 * n + 1] = sum;
  statistics[3 * n + 2] = 0 <= column && column < columns ? row[column] : 0;
}

// One block: 12 bytes a row and rank, nothing beside the logits.
__global__ void __launch_bounds__(kMergeThreads)
    MergeKernel(float* lse, double* sums, const float* gathered, const int32_t* targets,
                int64_t ranks, int64_t N) {
  double* const shared = gpu::SharedMemory<double>();
  double loss = 0, lse_squares = 0;
  for (int64_t n = threadIdx.x; n < N; n += kMergeThreads) {
    float largest = -INFINITY;
    for (int64_t r = 0; r < ranks; ++r) largest = fmaxf(largest, gathered[(r * N + n) * 3]);
    float sum = 0, target_logit = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      const float* const part = gathered + (r * N + n) * 3;
      sum += part[1] * gpu::Exp(part[0] - Finite(largest));
      target_logit += part[2];
    }
    const float row_lse = largest + gpu::Log(sum);
    lse[n] = row_lse;
    if (targets[n] < 0) continue;
    loss += static_cast<double>(row_lse) - static_cast<double>(target_logit);
    lse_squares += static_cast<double>(row_lse) * static_cast<double>(row_lse);
  }
  loss = gpu::BlockSum(loss, shared);
  lse_squares = gpu::BlockSum(lse_squares, shared + kMergeThreads / gpu::kWarpLanes);
  if (threadIdx.x != 0) return;
  sums[0] += loss;
  sums[1] += lse_squares;
}

// Floor: one read of the logits and one write of the gradient. A thread writes only what it has
// read, so the two may be the same memory.
template <int kWidth, class T>
__global__ void GradientKernel(T* gradient, const float* logits, const int32_t* targets,
                               const float* lse, int64_t columns, int64_t begin,
                               TokenLossScales scales) {
  const int64_t n = blockIdx.x;
  const int64_t column = targets[n] - begin;
  const bool counts = targets[n] >= 0;
  const float row_lse = lse[n];
  const float factor = scales.total * (1 + 2 * scales.z_loss * row_lse);
  for (int64_t j = int64_t{threadIdx.x} * kWidth; j < columns; j += kThreads * kWidth) {
    float values[kWidth] = {};
    if (counts) gpu::LoadValues(values, logits + n * columns + j);
    for (int i = 0; i < kWidth; ++i) {
      const float slope = factor * gpu::Exp(values[i] - row_lse);
      values[i] = counts ? slope - (j + i == column ? scales.total : 0) : 0;
    }
    gpu::StoreValues(gradient + n * columns + j, values);
  }
}

}  // namespace

void CudaOps::LogitStatistics(Tensor statistics, Tensor logits, Tensor targets,
                              int64_t begin) const {
  CheckLogitStatistics(statistics, logits, targets);
  const int64_t N = logits.dim(0), columns = logits.dim(1);
  if (N == 0) return;
  gpu::WithWidth(columns, gpu::Aligned(logits.data()),
                 [&]<int kWidth>(std::integral_constant<int, kWidth>) {
                   Launch("LogitStatistics", StatisticsKernel<kWidth>,
                          {.blocks = static_cast<unsigned>(N),
                           .threads = kThreads,
                           .shared_bytes = 2 * kWarps * int64_t{sizeof(float)}},
                          stream_, statistics.As<float>(), logits.As<float>(),
                          targets.As<int32_t>(), columns, begin);
                 });
}

void CudaOps::MergeLogitStatistics(Tensor lse, Tensor sums, Tensor gathered, Tensor targets) const {
  CheckMergeLogitStatistics(lse, sums, gathered, targets);
  const int64_t ranks = gathered.dim(0), N = gathered.dim(1);
  if (N == 0) return;
  constexpr int64_t kSums = 2 * kMergeThreads / gpu::kWarpLanes;
  Launch("MergeLogitStatistics", MergeKernel,
         {.blocks = 1, .threads = kMergeThreads, .shared_bytes = kSums * int64_t{sizeof(double)}},
         stream_, lse.As<float>(), sums.As<double>(), gathered.As<float>(), targets.As<int32_t>(),
         ranks, N);
}

void CudaOps::LogitGradient(Tensor gradient, Tensor logits, Tensor targets, Tensor lse,
                            int64_t begin, TokenLossScales scales) const {
  CheckLogitGradient(gradient, logits, targets, lse);
  const int64_t N = logits.dim(0), columns = logits.dim(1);
  if (logits.elements() == 0) return;
  WithActivationType(gradient.dtype(), [&]<class T>(std::type_identity<T>) {
    gpu::WithWidth(columns, gpu::Aligned(gradient.data(), logits.data()),
                   [&]<int kWidth>(std::integral_constant<int, kWidth>) {
                     Launch("LogitGradient", GradientKernel<kWidth, T>,
                            {.blocks = static_cast<unsigned>(N), .threads = kThreads}, stream_,
                            gradient.As<T>(), logits.As<float>(), targets.As<int32_t>(),
                            lse.As<float>(), columns, begin, scales);
                   });
  });
}

}  // namespace twinstream
