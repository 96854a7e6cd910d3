// Products of matrices that fit the caches, on the calling thread: attention's. oneDNN's products
// of such sizes have 60 to 75 % of the speed of its large ones on AVX2.
//
// Factor is float or BFloat16Pair, that is two neighbours along K: K and what is called a row of b
// count factors, not elements. Sums are float32.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/bfloat16.h"
#include "isa/product_shape.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

// Elements k and k + 1 of a bf16 matrix, k even; the first in the lower half. Rows of bf16 may be
// read as such.
struct __attribute__((may_alias)) BFloat16Pair {
  uint32_t bits;
};

// What products of bf16 matrices multiply: pairs, or float32 copies.
using BFloat16Factor = std::conditional_t<kMultipliesPairs, BFloat16Pair, float>;

template <class Factor>
constexpr int64_t kFactorDepth = std::is_same_v<Factor, BFloat16Pair> ? 2 : 1;

// What factors consist of.
template <class Factor>
using ElementOf = std::conditional_t<std::is_same_v<Factor, BFloat16Pair>, BFloat16, float>;

// Factors of so many elements along K.
template <class Factor>
int64_t FactorsOf(int64_t elements) {
  return (elements + kFactorDepth<Factor> - 1) / kFactorDepth<Factor>;
}

// A product works on this many columns at a time: the N of every product is a multiple.
constexpr int64_t kPanelColumns = 2 * kVectorLanes;
inline int64_t PaddedToPanels(int64_t columns) {
  return (columns + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
}

// The left operand: factor (i, k) is data[i * row_stride + k * column_stride].
template <class Factor>
struct LeftOperand {
  const Factor* data;
  int64_t row_stride, column_stride;

  static LeftOperand Rows(const Factor* data, int64_t stride) { return {data, stride, 1}; }
  // The transpose of the matrix whose rows lie so.
  static LeftOperand Transposed(const Factor* data, int64_t stride) { return {data, 1, stride}; }
  // Without its first rows and columns.
  LeftOperand From(int64_t row, int64_t column) const {
    return {data + row * row_stride + column * column_stride, row_stride, column_stride};
  }
};

// The right operand, in panels: factor (k, j) is
// data[j / kPanelColumns * panel_stride + k * row_stride + j % kPanelColumns].
template <class Factor>
struct RightOperand {
  const Factor* data;
  int64_t row_stride, panel_stride;

  // Panels of K dense rows one after another: the next row is in the next cache lines.
  static RightOperand Panels(const Factor* data, int64_t K) {
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
template <class Factor>
void SmallProduct(ProductSizes sizes, ProductResult result, LeftOperand<Factor> a,
                  RightOperand<Factor> b);

}  // namespace twinstream::TWINSTREAM_CPU_ISA
