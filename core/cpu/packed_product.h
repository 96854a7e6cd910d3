// Products of matrices of a training step, on all of OpenMP's threads: out of copies of the
// operands in the order in which SmallProduct reads them. On AVX2 oneDNN 2.6 has no bf16 products,
// and in float32 70 to 90 % of the speed of its large products where a matrix is narrow or the left
// one is transposed; on AVX-512 60 to 80 % where the left one is transposed and both are bf16.
#pragma once

#include "core/cpu/product_panels.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

// Rows of float32 or bf16.
struct PackedResult {
  std::byte* data;
  DType dtype;
  int64_t stride;    // elements from row to row
  bool add = false;  // += instead of =
};

// Whether a product has enough to do with each copied element.
bool PaysToPack(ProductSizes sizes);

// result [M, N] = or += a [M, K] b [K, N]; it overlaps neither a nor b, and K is at least 1. Sums
// are float32's, and a bf16 result is rounded once. The order in which an element is summed up
// depends on K alone, neither on the other sizes nor on threads.
void PackedProduct(ProductSizes sizes, PackedResult result, ProductOperand a, ProductOperand b);

}  // namespace twinstream::TWINSTREAM_CPU_ISA
