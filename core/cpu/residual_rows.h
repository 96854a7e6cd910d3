// What the forward and the backward of a residual site share: one row of it at a time. A row is
// small enough for the L1 cache, so several loops over it cost one pass over memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/cpu/vector_math.h"
#include "core/residual_site.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

// How x enters the sum u that a block reads.
enum class XTerm {
  kNone,
  kPlain,    // x
  kWeighted  // x_scale . x_weight . x: a norm, or a learned scale with x_scale = 1
};

inline XTerm XTermOf(const ResidualRead& read) {
  switch (read.x) {
    case ResidualRead::X::kNone:
      return XTerm::kNone;
    case ResidualRead::X::kBase:
      return read.base_norm ? XTerm::kWeighted : XTerm::kPlain;
    case ResidualRead::X::kNorm:
    case ResidualRead::X::kScale:
      return XTerm::kWeighted;
  }
  Die("unknown way to read x");
}

// One row of both streams as a block reads them, T the streams' type. Scales are 1 / sqrt(mean(v^2)
// + eps).
template <class T>
struct StreamRow {
  const T* x = nullptr;             // [C]
  const float* x_weight = nullptr;  // [C]
  float x_scale = 1;
  const T* y = nullptr;             // [C]
  const float* y_weight = nullptr;  // [C]
  float y_scale = 1;

  // u[j]
  template <XTerm kX, bool kY>
  float Sum(int64_t j) const {
    float sum = 0;
    if constexpr (kX == XTerm::kPlain) sum = x[j];
    if constexpr (kX == XTerm::kWeighted) sum = x_scale * x_weight[j] * x[j];
    if constexpr (kY) sum += y_scale * y_weight[j] * y[j];
    return sum;
  }
};

// f(std::bool_constant<flag>()): a flag of the site becomes a constant of the loop that f holds.
template <class F>
auto WithConstant(bool flag, F f) {
  return flag ? f(std::true_type()) : f(std::false_type());
}

template <class F>
auto WithConstant(XTerm term, F f) {
  switch (term) {
    case XTerm::kNone:
      return f(std::integral_constant<XTerm, XTerm::kNone>());
    case XTerm::kPlain:
      return f(std::integral_constant<XTerm, XTerm::kPlain>());
    case XTerm::kWeighted:
      return f(std::integral_constant<XTerm, XTerm::kWeighted>());
  }
  Die("unknown term of x");
}

// sum [C] <- u
template <class T, class Sum>
void SumStreams(const StreamRow<T>& row, const ResidualRead& read, Sum* sum, int64_t C) {
  WithConstant(XTermOf(read), [&](auto kX) {
    WithConstant(read.y, [&](auto kY) {
      VectorLoop(C, [=](int64_t j) { sum[j] = row.template Sum<kX(), kY()>(j); });
    });
  });
}

// h [C] <- N_in(u), of the norm's weight [C] and scale.
template <class T>
void NormSum(const float* u, const float* weight, float scale, T* h, int64_t C) {
  VectorLoop(C, [=](int64_t j) { h[j] = scale * weight[j] * u[j]; });
}

// Row n of a matrix [N, C] of T, or null where there is none. Runs for every row: the checks
// of core/residual_site.h have looked at the dtype.
template <class T>
T* RowOf(Tensor matrix, int64_t n) {
  return matrix ? reinterpret_cast<T*>(matrix.data()) + n * matrix.dim(1) : nullptr;
}
inline float* WeightOf(Tensor weight) { return reinterpret_cast<float*>(weight.data()); }

}  // namespace twinstream::TWINSTREAM_CPU_ISA
