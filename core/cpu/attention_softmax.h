// The softmax of a block's scores and its backward, whose results are operands of products.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/bfloat16.h"
#include "core/cpu/attention_blocks.h"
#include "core/cpu/vector_math.h"
#include "core/cpu/vector_rows.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

// The end of a row of `elements` in whole factors.
template <class Factor>
int64_t EndInFactors(int64_t elements) {
  return FactorsOf<Factor>(elements) * kFactorDepth<Factor>;
}

// Loops over a row's scores end so many keys on, in whole vectors. Scores that the row does not see
// become -infinity first, of which the softmax is zero.
inline int64_t EndInVectors(int64_t visible) {
  static_assert(kVectorLanes <= kPanelColumns);  // what AttentionFrame::score_stride adds
  return (visible + kVectorLanes - 1) / kVectorLanes * kVectorLanes;
}

inline void StorePairs(Vector even, Vector odd, BFloat16Pair* to) {
  const WordVector pairs = RoundPairs(even, odd);
  std::memcpy(to, &pairs, sizeof(pairs));
}

// Memory for rounded scores: those of float32 stay where they are.
template <class Factor>
ElementOf<Factor>* TakeRounded(const AttentionFrame& frame, Parts& parts, float* scores) {
  if constexpr (std::is_same_v<Factor, float>) {
    return scores;
  } else {
    return parts.Take<ElementOf<Factor>>(frame.scores());
  }
}

// Zeros in elements [begin, end), if there are any.
template <class T>
void FillFrom(int64_t begin, int64_t end, T* row) {
  if (begin < end) std::fill(row + begin, row + end, T{});
}

// Softmax of unscaled scores but for the division: row i of p becomes exp(scale (s - max)),
// inverse_sum[i] = 1 / its sum, lse[i] its log-sum-exp. p: as `scores`, which it may be.
template <class Factor>
void SoftmaxRows(const AttentionFrame& frame, const ScoreBlock& block, float* scores,
                 ElementOf<Factor>* p, float* inverse_sum, float* lse) {
  for (int64_t i = 0; i < block.rows(); ++i) {
    float* const row = scores + i * frame.score_stride;
    ElementOf<Factor>* const p_row = p + i * frame.score_stride;
    const int64_t visible = block.Visible(i), end = EndInVectors(visible);
    std::fill(row + visible, row + end, kMinusInfinity);
    const float largest = MaxOfRow(end, row);
    Vector sums = {};
    ForWholeVectors(end, [=, scale = kLog2E * frame.scale, &sums](auto at) {
      const Vector exponentials = Exp2(scale * (at.Load(row) - largest));
      at.Store(exponentials, p_row);
      sums += exponentials;
    });
    const float sum = SumOfLanes(sums);
    FillFrom(end, EndInFactors<Factor>(block.keys()), p_row);
    inverse_sum[i] = 1 / sum;
    lse[i] = frame.scale * largest + std::log(sum);
  }
}

// P and dS of a block as operands of products. Columns are rows of factors along the block's rows.
template <class Factor>
struct ScoreOperands {
  ScoreOperands(const AttentionFrame& frame, Parts& parts)
      : scores(parts.Take<float>(frame.scores())), dscores(parts.Take<float>(frame.scores())) {
    ds_rows = TakeRounded<Factor>(frame, parts, dscores);
    if constexpr (std::is_same_v<Factor, float>) {
      p_columns = scores;
      ds_columns = dscores;
    } else {
      p_columns = parts.Take<Factor>(frame.scores() / kFactorDepth<Factor>);
      ds_columns = parts.Take<Factor>(frame.scores() / kFactorDepth<Factor>);
    }
  }

  float *scores, *dscores;  // [block rows, keys]
  ElementOf<Factor>* ds_rows;
  Factor *p_columns, *ds_columns;
};

// What of a row of scores its gradients need. delta: sum of dO . O of the row.
struct RowStatistics {
  float lse, delta;
};

// Unscaled scores and the gradients of probabilities become P and dS.
inline void SoftmaxRowBackward(const AttentionFrame& frame, const ScoreBlock& block, int64_t i,
                               RowStatistics row, const ScoreOperands<float>& operands) {
  float* const scores = operands.scores + i * frame.score_stride;
  float* const dscores = operands.dscores + i * frame.score_stride;
  const int64_t visible = block.Visible(i), end = EndInVectors(visible);
  std::fill(scores + visible, scores + end, kMinusInfinity);
  std::fill(dscores + visible, dscores + end, 0.0F);
  ForWholeVectors(end, [=, scale = frame.scale](auto at) {
    const Vector p = Exp2(kLog2E * scale * at.Load(scores) - kLog2E * row.lse);
    at.Store(p, scores);
    at.Store(p * (at.Load(dscores) - row.delta) * scale, dscores);
  });
  FillFrom(end, block.keys(), scores);
  FillFrom(end, block.keys(), dscores);
}

// The same, rounded, of rows i and i + 1, i even. If the block ends with i, the second one is row i
// again, of probabilities that its statistics make zero.
inline void SoftmaxPairBackward(const AttentionFrame& frame, const ScoreBlock& block, int64_t i,
                                RowStatistics first, RowStatistics second,
                                const ScoreOperands<BFloat16Pair>& operands) {
  const int64_t stride = frame.score_stride;
  const bool missing = i + 1 == block.rows();
  const int64_t step = missing ? 0 : stride;
  const int64_t visible = block.Visible(i),
                second_visible = missing ? visible : block.Visible(i + 1),
                end = EndInVectors(second_visible);
  float *const scores = operands.scores + i * stride, *const dscores =
                                                          operands.dscores + i * stride;
  std::fill(scores + visible, scores + end, kMinusInfinity);
  std::fill(dscores + visible, dscores + end, 0.0F);
  std::fill(scores + step + second_visible, scores + step + end, kMinusInfinity);
  std::fill(dscores + step + second_visible, dscores + step + end, 0.0F);
  BFloat16* const ds_rows = operands.ds_rows + i * stride;
  BFloat16Pair *const p = operands.p_columns + i / 2 * stride, *const ds = operands.ds_columns +
                                                                           i / 2 * stride;
  ForWholeVectors(end, [=, scale = frame.scale](auto at) {
    const Vector p1 = Exp2(kLog2E * scale * at.Load(scores) - kLog2E * first.lse),
                 p2 = Exp2(kLog2E * scale * at.Load(scores + step) - kLog2E * second.lse),
                 ds1 = p1 * (at.Load(dscores) - first.delta) * scale,
                 ds2 = p2 * (at.Load(dscores + step) - second.delta) * scale;
    StorePairs(p1, p2, p + at.first);
    StorePairs(ds1, ds2, ds + at.first);
    at.Store(ds1, ds_rows);
    at.Store(ds2, ds_rows + stride);
  });
  const int64_t keys = EndInFactors<BFloat16Pair>(block.keys());
  FillFrom(end, keys, p);
  FillFrom(end, keys, ds);
  FillFrom(end, keys, ds_rows);
  FillFrom(end, keys, ds_rows + stride);
}

// delta[i] = sum of dO . O of row i.
template <class Factor>
void SoftmaxRowsBackward(const AttentionFrame& frame, const ScoreBlock& block, const float* lse,
                         const float* delta, const ScoreOperands<Factor>& operands) {
  for (int64_t i = 0; i < block.rows(); i += kFactorDepth<Factor>) {
    if constexpr (std::is_same_v<Factor, float>) {
      SoftmaxRowBackward(frame, block, i, {lse[i], delta[i]}, operands);
    } else {
      const RowStatistics missing = {-kMinusInfinity, 0};
      SoftmaxPairBackward(frame, block, i, {lse[i], delta[i]},
                          i + 1 < block.rows() ? RowStatistics{lse[i + 1], delta[i + 1]} : missing,
                          operands);
    }
  }
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
