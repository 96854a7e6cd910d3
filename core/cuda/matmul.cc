#include "core/cuda/ops.h"

namespace twinstream {

void CudaOps::Matmul(Tensor out, Tensor a, Tensor b, MatmulOptions options) const {
  products_->Multiply(out, a, b, options);
}

}  // namespace twinstream
