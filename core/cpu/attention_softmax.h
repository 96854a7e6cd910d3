// The softmax of a block's scores and its backward, whose results are operands of products.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/bfloat16.h"
#include "core/cpu/attention_blocks.h"
#include "core/cpu/vector_math.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

// The end of a row of `elements` in whole factors.
template <class Factor>
int64_t EndInFactors(int64_t elements) {
  return FactorsOf<Factor>(elements) * kFactorDepth<Factor>;
}

// Loops over a row's scores end so many keys on, in whole vectors: the rest of a count is computed
// one by one. Scores that the row does not see become -infinity first, of which the softmax is
// zero.
inline int64_t EndInVectors(int64_t visible) {
  static_assert(kReductionLanes <= 2 * kPanelColumns);  // AttentionFrame::score_stride
  return (visible + kReductionLanes - 1) / kReductionLanes * kReductionLanes;
}

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// A bf16 in the upper half: to the nearest, ties away from zero, which takes a third of the
// operations of BFloat16's own rounding. NaNs as arithmetic makes them stay NaNs.
inline uint32_t RoundedUpperHalf(float value) { return std::bit_cast<uint32_t>(value) + 0x8000; }

inline BFloat16Pair RoundedPair(float first, float second) {
  return {RoundedUpperHalf(first) >> 16 | (RoundedUpperHalf(second) & 0xFFFF0000)};
}

inline void Round(float value, float& to) { to = value; }
inline void Round(float value, BFloat16& to) {
  to.bits = static_cast<uint16_t>(RoundedUpperHalf(value) >> 16);
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
    std::fill(row + visible, row + end, kHidden);
    const float largest = VectorMax(end, [=](int64_t j) { return row[j]; });
    const float sum = VectorSum(end, [=, scale = frame.scale](int64_t j) {
      const float exponential = Exp(scale * (row[j] - largest));
      Round(exponential, p_row[j]);
      return exponential;
    });
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
  std::fill(scores + visible, scores + end, kHidden);
  std::fill(dscores + visible, dscores + end, 0.0F);
  VectorLoop(end, [=, scale = frame.scale](int64_t j) {
    const float p = Exp(scale * scores[j] - row.lse);
    scores[j] = p;
    dscores[j] = p * (dscores[j] - row.delta) * scale;
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
  std::fill(scores + visible, scores + end, kHidden);
  std::fill(dscores + visible, dscores + end, 0.0F);
  std::fill(scores + step + second_visible, scores + step + end, kHidden);
  std::fill(dscores + step + second_visible, dscores + step + end, 0.0F);
  BFloat16* const ds_rows = operands.ds_rows + i * stride;
  BFloat16Pair *const p = operands.p_columns + i / 2 * stride, *const ds = operands.ds_columns +
                                                                           i / 2 * stride;
  VectorLoop(end, [=, scale = frame.scale](int64_t j) {
    const float p1 = Exp(scale * scores[j] - first.lse),
                p2 = Exp(scale * scores[j + step] - second.lse),
                ds1 = p1 * (dscores[j] - first.delta) * scale,
                ds2 = p2 * (dscores[j + step] - second.delta) * scale;
    p[j] = RoundedPair(p1, p2);
    ds[j] = RoundedPair(ds1, ds2);
    Round(ds1, ds_rows[j]);
    Round(ds2, ds_rows[j + stride]);
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
      const RowStatistics missing = {std::numeric_limits<float>::infinity(), 0};
      SoftmaxPairBackward(frame, block, i, {lse[i], delta[i]},
                          i + 1 < block.rows() ? RowStatistics{lse[i + 1], delta[i + 1]} : missing,
                          operands);
    }
  }
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
