// MatrixProducts: products of matrices of a device. Native: cuBLASLt's (matrix_products.cc);
// emulated: the CPU's.
#pragma once

#include <memory>

#include "core/cuda/stream.h"
#include "core/ops.h"

namespace twinstream {

class MatrixProducts {
 public:
  virtual ~MatrixProducts() = default;
  // As Ops::Matmul, on the stream of the products. M, N and K are at least 1; a and b have the same
  // dtype, and out has theirs or float32.
  virtual void Multiply(Tensor out, Tensor a, Tensor b, MatmulOptions options) = 0;
};

// Products on `stream`, which outlives them.
std::unique_ptr<MatrixProducts> MakeMatrixProducts(gpu::Stream stream);

}  // namespace twinstream
