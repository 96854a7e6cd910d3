// Attention by products of warpgroups: what the rows of a warp, 16 of its warpgroup's 64, have to
// do with tiles in shared memory. Each of the products here is a group of its own, under way when
// its function returns.
#pragma once

#include <type_traits>

#include "core/cuda/attention_tiles.h"
#include "core/cuda/panels.h"
#include "core/cuda/tiles.h"
#include "gpu/primitives.h"
#include "gpu/warpgroup.h"

namespace twinstream::gpu {

// f(std::integral_constant<int, kD>()) for the columns of panels that hold rows of D values, at
// most 128.
template <class F>
void WithPanelColumns(int D, F f) {
  if (D <= 64) return f(std::integral_constant<int, 64>());
  f(std::integral_constant<int, 128>());
}

// The warp's rows of a tile, from first_row on, as left operand: [16, kD].
template <int kRows, int kD>
__device__ void LoadRows(Weights<1, kD / 16>& rows, const Panels<kRows, kD>& tile, int first_row) {
  const int lane = Opaque(ThisLane());
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    LoadMatrices(rows[0][k], tile.At(first_row + lane % 16, 2 * k, lane / 16));
  }
}

// sums = left right'.
template <int kRows, int kD>
__device__ void IssueRowProducts(Sums<1, kRows / 8>& sums, const Weights<1, kD / 16>& left,
                                 const Panels<kRows, kD>& right) {
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    AddProduct(sums[0], left[0][k], right.Transpose(k), /*accumulate=*/k > 0);
  }
  CommitProducts();
}

// The same of 64 rows of `left` from first_row on, in shared memory.
template <int kLeftRows, int kRows, int kD>
__device__ void IssueRowProducts(Sums<1, kRows / 8>& sums, const Panels<kLeftRows, kD>& left,
                                 int first_row, const Panels<kRows, kD>& right) {
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    AddProduct(sums[0], left.LeftRows(first_row, k), right.Transpose(k), /*accumulate=*/k > 0);
  }
  CommitProducts();
}

// sums += weights right.
template <int kRows, int kD>
__device__ void IssueWeightedRows(Sums<1, kD / 8>& sums, const Weights<1, kRows / 16>& weights,
                                  const Panels<kRows, kD>& right) {
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) {
    AddProduct(sums[0], weights[0][k], right.Rows(k), /*accumulate=*/true);
  }
  CommitProducts();
}

}  // namespace twinstream::gpu
