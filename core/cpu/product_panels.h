// Copies of float32 and bf16 matrices in the order in which SmallProduct reads its operands.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/cpu/small_product.h"
#include "core/tensor.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

// Rows or columns [begin, end) of a matrix.
struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Calls f(part) on `range` in parts of `size`, the last one smaller.
template <class F>
void ForEachPart(Range range, int64_t size, F f) {
  for (int64_t begin = range.begin; begin < range.end; begin += size) {
    f(Range{begin, std::min(begin + size, range.end)});
  }
}

// A row-major matrix, or the transpose of one, of float32 or bf16.
struct ProductOperand {
  const std::byte* data;
  DType dtype;
  int64_t stride;  // elements from one stored row to the next
  bool transposed;

  // T is the type of its elements.
  template <class T>
  const T* Element(int64_t row, int64_t column) const {
    return reinterpret_cast<const T*>(data) +
           (transposed ? column * stride + row : row * stride + column);
  }
};

// Rows `depth` and columns `columns` of b in panels of kPanelColumns, the last one's missing
// columns zeros. Pairs are of a bf16 matrix; the last one of an odd depth ends with a zero.
// panels: [PaddedToPanels(columns.size()) * FactorsOf(depth.size())], overwritten.
template <class Factor>
RightOperand<Factor> PackRight(ProductOperand b, Range depth, Range columns, Factor* panels);

// Rows `rows` and columns `depth` of a: in tiles when a is stored transposed, else in dense rows.
// Pairs as above. to: [rows.size(), in whole tiles, * FactorsOf(depth.size())], overwritten.
template <class Factor>
LeftOperand<Factor> PackLeft(ProductOperand a, Range rows, Range depth, Factor* to);

}  // namespace twinstream::TWINSTREAM_CPU_ISA
