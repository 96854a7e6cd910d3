// Products of float32 matrices of a training step on CPUs with AVX2, on all of OpenMP's threads:
// out of copies of the operands in the order in which SmallProduct reads them. There oneDNN 2.6 has
// 70 to 90 % of the speed of its large products where a matrix is narrow or the left one is
// transposed.
#pragma once

#include "core/cpu/small_product.h"

namespace twinstream {

// A row-major matrix, or the transpose of one.
struct ProductOperand {
  const float* data;
  int64_t stride;  // from one stored row to the next
  bool transposed;
};

// Whether a product has enough to do with each copied element.
bool PaysToPack(ProductSizes sizes);

// result [M, N] = or += a [M, K] b [K, N]; it overlaps neither a nor b, and K is at least 1. The
// order in which an element is summed up depends on K alone, neither on the other sizes nor on
// threads.
void PackedProduct(ProductSizes sizes, ProductResult result, ProductOperand a, ProductOperand b);

}  // namespace twinstream
