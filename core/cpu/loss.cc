// Cross-entropy over a split vocabulary: statistics of this rank's columns, their merge, the
// gradient.
#include <algorithm>
#include <cmath>

#include "core/activation_type.h"
#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"
#include "core/cpu/vector_rows.h"
#include "core/op_checks.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

constexpr int64_t kOperationsPerExp = 16;

struct Statistics {
  float largest, sum, target_logit;
};

Statistics RowStatistics(const float* logits, int64_t columns, int64_t target_column) {
  const float largest = MaxOfRow(columns, logits);
  Vector sums = {};
  ForVectors(columns,
             [=, &sums](auto at) { sums += Exp(at.LoadOr(kMinusInfinity, logits) - largest); });
  const bool mine = 0 <= target_column && target_column < columns;
  return {largest, SumOfLanes(sums), mine ? logits[target_column] : 0.0F};
}

template <class T>
void GradientRows(Tensor gradient, Tensor logits, Tensor targets, Tensor lse, int64_t begin,
                  TokenLossScales scales) {
  const int64_t N = logits.dim(0), columns = logits.dim(1);
  T* const gradient_rows = gradient.As<T>();
  const float* const rows = logits.As<float>();
  const int32_t* const target = targets.As<int32_t>();
  const float* const lse_rows = lse.As<float>();
  const auto [z_loss, total] = scales;
  ParallelRows(
      N, GrainFor(columns * kOperationsPerExp),
      [=, z_loss = z_loss, total = total](int64_t first, int64_t last) {
        for (int64_t n = first; n < last; ++n) {
          T* const out = gradient_rows + n * columns;
          if (target[n] < 0) {
            VectorLoop(columns, [=](int64_t j) { out[j] = 0.0F; });
            continue;
          }
          const float* const row = rows + n * columns;
          const float row_lse = lse_rows[n];
          const float factor = total * (1 + 2 * z_loss * row_lse);
          const int64_t column = target[n] - begin;
          const bool mine = 0 <= column && column < columns;
          const float at_target = mine ? factor * std::exp(row[column] - row_lse) - total : 0;
          ForVectors(columns,
                     [=](auto at) { at.Store(factor * Exp(at.Load(row) - row_lse), out); });
          if (mine) out[column] = at_target;
        }
      });
}

}  // namespace

void CpuOps::LogitStatistics(Tensor statistics, Tensor logits, Tensor targets,
                             int64_t begin) const {
  CheckLogitStatistics(statistics, logits, targets);
  const int64_t N = logits.dim(0), columns = logits.dim(1);
  const float* rows = logits.As<float>();
  const int32_t* target = targets.As<int32_t>();
  float* out = statistics.As<float>();
  ParallelRows(N, GrainFor(columns * kOperationsPerExp), [=](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) {
      const Statistics row = RowStatistics(rows + n * columns, columns, target[n] - begin);
      out[3 * n] = row.largest;
      out[3 * n + 1] = row.sum;
      out[3 * n + 2] = row.target_logit;
    }
  });
}

// One thread: the sums are taken in the order of the rows, and there are only R numbers a row.
void CpuOps::MergeLogitStatistics(Tensor lse, Tensor sums, Tensor gathered, Tensor targets) const {
  CheckMergeLogitStatistics(lse, sums, gathered, targets);
  const int64_t ranks = gathered.dim(0), N = gathered.dim(1);
  const float* parts = gathered.As<float>();
  const int32_t* target = targets.As<int32_t>();
  float* lse_rows = lse.As<float>();
  double* total = sums.As<double>();
  for (int64_t n = 0; n < N; ++n) {
    float largest = kMinusInfinity;
    for (int64_t r = 0; r < ranks; ++r) largest = std::max(largest, parts[(r * N + n) * 3]);
    float sum = 0, target_logit = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      const float* part = parts + (r * N + n) * 3;
      sum += part[1] * std::exp(part[0] - largest);
      target_logit += part[2];
    }
    lse_rows[n] = largest + std::log(sum);
    if (target[n] < 0) continue;
    const double row_lse = lse_rows[n];
    total[0] += row_lse - target_logit;
    total[1] += row_lse * row_lse;
  }
}

void CpuOps::LogitGradient(Tensor gradient, Tensor logits, Tensor targets, Tensor lse,
                           int64_t begin, TokenLossScales scales) const {
  CheckLogitGradient(gradient, logits, targets, lse);
  WithActivationType(gradient.dtype(), [=]<class T>(std::type_identity<T>) {
    GradientRows<T>(gradient, logits, targets, lse, begin, scales);
  });
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
