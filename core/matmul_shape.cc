#include "core/matmul_shape.h"

namespace twinstream {
namespace {

bool IsActivation(Tensor tensor) {
  return tensor.dtype() == DType::kF32 || tensor.dtype() == DType::kBF16;
}

}  // namespace

MatmulShape CheckedMatmul(Tensor out, Tensor a, Tensor b, const MatmulOptions& options) {
  Check(out.shape().rank() == 2 && a.shape().rank() == 2 && b.shape().rank() == 2,
        "product of %s and %s into %s: all must be matrices", a.shape(), b.shape(), out.shape());
  const int64_t M = out.dim(0), N = out.dim(1), K = a.dim(options.transpose_a ? 0 : 1);
  Check(a.dim(options.transpose_a ? 1 : 0) == M && b.dim(options.transpose_b ? 1 : 0) == K &&
            b.dim(options.transpose_b ? 0 : 1) == N,
        "product of %s%s and %s%s into %s", a.shape(), options.transpose_a ? "'" : "", b.shape(),
        options.transpose_b ? "'" : "", out.shape());
  Check(IsActivation(out) && IsActivation(a) && IsActivation(b),
        "product of %s and %s into %s: all must be float32 or bf16", NameOf(a.dtype()),
        NameOf(b.dtype()), NameOf(out.dtype()));
  return {M, N, K};
}

}  // namespace twinstream
