// What the forward and the backward of a residual site share: one row of it at a time. A row is
// small enough for the L1 cache, so several loops over it cost one pass over memory. What the site
// asks for is looked at in every vector: it is the same for all of a row, so such a branch costs
// less than its vector's loads.
#pragma once

#include <cstdint>

#include "core/cpu/vector_rows.h"
#include "core/residual_site.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

// One row of both streams as a block reads them: u = [x or x_scale . x_weight . x] + y_scale .
// y_weight . y, each term if it is there. Scales are 1 / sqrt(mean(v^2) + eps), or 1 of a learned
// weight.
struct StreamSum {
  bool plain_x = false;
  const float* x_weight = nullptr;  // [C]
  float x_scale = 1;
  const float* y_weight = nullptr;  // [C]
  float y_scale = 1;

  template <class At>
  Vector Of(At at, Vector x, Vector y) const {
    Vector u = {};
    if (plain_x) u = x;
    if (x_weight != nullptr) u = x_scale * at.Load(x_weight) * x;
    if (y_weight != nullptr) u = MultiplyAdd(y_scale * at.Load(y_weight), y, u);
    return u;
  }
};

// Of weights [C] that are there where the read uses them, scales to be filled in.
inline StreamSum SumOfRead(const ResidualRead& read, const float* x_weight, const float* y_weight) {
  using X = ResidualRead::X;
  const bool weights_x = read.x != X::kNone && UsesXWeight(read);
  return {.plain_x = read.x == X::kBase && !weights_x,
          .x_weight = weights_x ? x_weight : nullptr,
          .y_weight = read.y ? y_weight : nullptr};
}

// Row n of a matrix [N, C] of T, or null where there is none. Runs for every row: the checks
// of core/residual_site.h have looked at the dtype.
template <class T>
T* RowOf(Tensor matrix, int64_t n) {
  return matrix ? reinterpret_cast<T*>(matrix.data()) + n * matrix.dim(1) : nullptr;
}
inline float* WeightOf(Tensor weight) { return reinterpret_cast<float*>(weight.data()); }

}  // namespace twinstream::TWINSTREAM_CPU_ISA
