#include "core/cpu/small_product.h"

#include <algorithm>
#include <cstring>

namespace twinstream {
namespace {

// A tile of the result is held in 12 of AVX2's 16 registers, while rows of b come in two and
// elements of a in one. Two multiplications and additions a cycle then need 1.3 loads.
using Vector = float __attribute__((vector_size(32)));
constexpr int64_t kLanes = 8;
static_assert(kPanelColumns == 2 * kLanes);

Vector Load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

void Store(float* to, Vector vector) { std::memcpy(to, &vector, sizeof(vector)); }

template <int64_t kRows>
void Tile(int64_t K, ProductResult result, LeftOperand a, RightOperand b) {
  for (int64_t i = 0; i < kRows; ++i) __builtin_prefetch(result.data + i * result.stride, 1);
  Vector sums[kRows][2] = {};
#pragma GCC unroll 4
  for (int64_t k = 0; k < K; ++k) {
    const Vector first = Load(b.data + k * b.row_stride),
                 second = Load(b.data + k * b.row_stride + kLanes);
    for (int64_t i = 0; i < kRows; ++i) {
      const float factor = a.data[i * a.row_stride + k * a.column_stride];
      sums[i][0] += factor * first;
      sums[i][1] += factor * second;
    }
  }
  for (int64_t i = 0; i < kRows; ++i) {
    float* const row = result.data + i * result.stride;
    if (result.add) {
      sums[i][0] += Load(row);
      sums[i][1] += Load(row + kLanes);
    }
    Store(row, sums[i][0]);
    Store(row + kLanes, sums[i][1]);
  }
}

// A tile of `rows` rows, at most kRows.
template <int64_t kRows = kTileRows>
void TileOf(int64_t rows, int64_t K, ProductResult result, LeftOperand a, RightOperand b) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return TileOf<kRows - 1>(rows, K, result, a, b);
  }
  Tile<kRows>(K, result, a, b);
}

}  // namespace

void SmallProduct(ProductSizes sizes, ProductResult result, LeftOperand a, RightOperand b) {
  for (int64_t k = 0; k < sizes.K; k += kProductDepth) {
    for (int64_t j = 0; j < sizes.N; j += kPanelColumns) {
      for (int64_t i = 0; i < sizes.M; i += kTileRows) {
        TileOf(std::min(kTileRows, sizes.M - i), std::min(kProductDepth, sizes.K - k),
               {result.data + i * result.stride + j, result.stride, result.add || k > 0},
               a.From(i, k), b.From(k, j));
      }
    }
  }
}

}  // namespace twinstream
