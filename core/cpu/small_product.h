// Products of float32 matrices that fit the caches, on the calling thread: what attention needs,
// and packed_product.h. oneDNN's products of such sizes have 60 to 75 % of the speed of its large
// ones on AVX2. Written for AVX2; on AVX-512 it has the speed of AVX2.
#pragma once

#include <cstdint>

namespace twinstream {

// A product works on this many columns at a time: the N of every product is a multiple.
constexpr int64_t kPanelColumns = 16;
inline int64_t PaddedToPanels(int64_t columns) {
  return (columns + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
}

// On so many rows.
constexpr int64_t kTileRows = 6;

// And so deep: as much of a panel and a tile fit a first-level cache.
constexpr int64_t kProductDepth = 320;

// The left operand: element (i, k) is
// data[i / kTileRows * tile_stride + i % kTileRows * row_stride + k * column_stride].
struct LeftOperand {
  const float* data;
  int64_t tile_stride, row_stride, column_stride;

  static LeftOperand Rows(const float* data, int64_t stride) {
    return {data, kTileRows * stride, stride, 1};
  }
  // The transpose of the matrix whose rows lie so.
  static LeftOperand Transposed(const float* data, int64_t stride) {
    return {data, kTileRows, 1, stride};
  }
  // Tiles of K dense columns one after another.
  static LeftOperand Tiles(const float* data, int64_t K) {
    return {data, kTileRows * K, 1, kTileRows};
  }
  // Without its first rows, of tiles in whole ones, and columns.
  LeftOperand From(int64_t row, int64_t column) const {
    return {data + row / kTileRows * tile_stride + row % kTileRows * row_stride +
                column * column_stride,
            tile_stride, row_stride, column_stride};
  }
};

// The right operand, in panels: element (k, j) is
// data[j / kPanelColumns * panel_stride + k * row_stride + j % kPanelColumns].
struct RightOperand {
  const float* data;
  int64_t row_stride, panel_stride;

  static RightOperand Rows(const float* data, int64_t stride) {
    return {data, stride, kPanelColumns};
  }
  // Panels of K dense rows one after another: the next row is in the next cache line.
  static RightOperand Panels(const float* data, int64_t K) {
    return {data, kPanelColumns, K * kPanelColumns};
  }
  // Without its first rows, and columns in whole panels.
  RightOperand From(int64_t row, int64_t column) const {
    return {data + row * row_stride + column / kPanelColumns * panel_stride, row_stride,
            panel_stride};
  }
};

struct ProductResult {
  float* data;
  int64_t stride;    // from row to row
  bool add = false;  // += instead of =
};

struct ProductSizes {
  int64_t M, N, K;
};

// result [M, N] = or += a [M, K] b [K, N], K at least 1. Every element is summed up in ascending k,
// kProductDepth terms at a time.
void SmallProduct(ProductSizes sizes, ProductResult result, LeftOperand a, RightOperand b);

}  // namespace twinstream
