// Ops::Matmul on a CUDA device: what MatrixProducts takes goes there as it is; products of mixed
// types, the router's, go there through float32 copies.
#include "core/cuda/ops.h"
#include "core/op_checks.h"

namespace twinstream {
namespace {

// Of the workspace, for a matrix's float32 copy.
int64_t BytesOfCopy(Tensor matrix) {
  return matrix.dtype() == DType::kF32 ? 0 : WideCopyBytes(matrix.elements());
}

// The products of one call, whose bf16 matrices are copied to the workspace as float32. A product
// whose copies do not fit is cut in halves along the rows of a.
class WidenedProduct {
 public:
  WidenedProduct(const Ops& ops, MatrixProducts& products, const Workspace& workspace)
      : ops_(ops), products_(products), workspace_(workspace) {}

  void Multiply(Tensor out, Tensor a, Tensor b, MatmulOptions options) const {
    if (BytesOfCopy(out) + BytesOfCopy(a) + BytesOfCopy(b) <= workspace_.bytes) {
      MultiplyCopies(out, a, b, options);
      return;
    }
    const int64_t rows = a.dim(0), half = rows / 2;
    if (!options.transpose_a) {  // they are the rows of out
      Check(half > 0, "a product of mixed types with a right operand %s: its copy does not fit",
            b.shape());
      Multiply(out.Rows(0, half), a.Rows(0, half), b, options);
      Multiply(out.Rows(half, rows), a.Rows(half, rows), b, options);
      return;
    }
    // They are K: out is a sum of two products, and rounded once.
    Check(half > 0 && !options.transpose_b && out.dtype() == DType::kF32,
          "a product of mixed types of %s' and %s: their copies do not fit", a.shape(), b.shape());
    Multiply(out, a.Rows(0, half), b.Rows(0, half), options);
    options.accumulate = true;
    Multiply(out, a.Rows(half, rows), b.Rows(half, rows), options);
  }

 private:
  void MultiplyCopies(Tensor out, Tensor a, Tensor b, const MatmulOptions& options) const {
    std::byte* memory = workspace_.data;
    const auto wide = [&memory](Tensor matrix) {
      if (matrix.dtype() == DType::kF32) return matrix;
      const Tensor copy(memory, DType::kF32, matrix.shape());
      memory += BytesOfCopy(matrix);
      return copy;
    };
    const Tensor wide_out = wide(out), wide_a = wide(a), wide_b = wide(b);
    if (wide_out.data() != out.data() && options.accumulate) ops_.Cast(wide_out, out);
    if (wide_a.data() != a.data()) ops_.Cast(wide_a, a);
    if (wide_b.data() != b.data()) ops_.Cast(wide_b, b);
    products_.Multiply(wide_out, wide_a, wide_b, options);
    if (wide_out.data() != out.data()) ops_.Cast(out, wide_out);
  }

  const Ops& ops_;
  MatrixProducts& products_;
  const Workspace& workspace_;
};

}  // namespace

void CudaOps::Matmul(Tensor out, Tensor a, Tensor b, MatmulOptions options) const {
  const auto [M, N, K] = CheckedMatmul(out, a, b, options);
  if (M == 0 || N == 0) return;
  if (K == 0) {
    if (!options.accumulate) gpu::Clear(out.data(), out.bytes(), stream_);
    return;
  }
  if (a.dtype() == b.dtype() && (out.dtype() == a.dtype() || out.dtype() == DType::kF32)) {
    products_->Multiply(out, a, b, options);
  } else {
    WidenedProduct(*this, *products_, workspace_).Multiply(out, a, b, options);
  }
}

}  // namespace twinstream
