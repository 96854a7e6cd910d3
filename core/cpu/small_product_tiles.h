// The definition of SmallProduct (small_product.h), for the files that instantiate it. AddProduct
// of other factors than float stands there.
#pragma once

#include <algorithm>

#include "core/cpu/small_product.h"
#include "core/cpu/vector.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

// sums += a b in every lane.
inline void AddProduct(Vector& sums, float a, Vector b) { sums += a * b; }

template <int64_t kRows, class Factor>
void Tile(int64_t K, ProductResult result, LeftOperand<Factor> a, RightOperand<Factor> b) {
  for (int64_t i = 0; i < kRows; ++i) __builtin_prefetch(result.data + i * result.stride, 1);
  Vector sums[kRows][2];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kRows; ++i) sums[i][0] = sums[i][1] = Vector{};
#pragma GCC unroll 4
  for (int64_t k = 0; k < K; ++k) {
    const Vector first = LoadVector(b.data + k * b.row_stride),
                 second = LoadVector(b.data + k * b.row_stride + kVectorLanes);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kRows; ++i) {
      const Factor factor = a.data[i * a.row_stride + k * a.column_stride];
      AddProduct(sums[i][0], factor, first);
      AddProduct(sums[i][1], factor, second);
    }
  }
#pragma GCC unroll 16
  for (int64_t i = 0; i < kRows; ++i) {
    float* const row = result.data + i * result.stride;
    if (result.add) {
      sums[i][0] += LoadVector(row);
      sums[i][1] += LoadVector(row + kVectorLanes);
    }
    StoreVector(row, sums[i][0]);
    StoreVector(row + kVectorLanes, sums[i][1]);
  }
}

// A tile of `rows` rows, at most kRows.
template <int64_t kRows, class Factor>
void TileOf(int64_t rows, int64_t K, ProductResult result, LeftOperand<Factor> a,
            RightOperand<Factor> b) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return TileOf<kRows - 1>(rows, K, result, a, b);
  }
  Tile<kRows>(K, result, a, b);
}

template <class Factor>
void SmallProduct(ProductSizes sizes, ProductResult result, LeftOperand<Factor> a,
                  RightOperand<Factor> b) {
  for (int64_t k = 0; k < sizes.K; k += kProductDepth) {
    for (int64_t j = 0; j < sizes.N; j += kPanelColumns) {
      for (int64_t i = 0; i < sizes.M; i += kTileRows) {
        TileOf<kTileRows>(std::min(kTileRows, sizes.M - i), std::min(kProductDepth, sizes.K - k),
                          {result.data + i * result.stride + j, result.stride, result.add || k > 0},
                          a.From(i, k), b.From(k, j));
      }
    }
  }
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
