// Copies of float32 and bf16 matrices in the order in which SmallProduct reads its right operand.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cpu/parallel.h"
#include "core/cpu/small_product.h"
#include "core/tensor.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

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

}  // namespace twinstream::TWINSTREAM_CPU_ISA
