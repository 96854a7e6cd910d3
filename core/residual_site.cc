#include "core/residual_site.h"

namespace twinstream {
namespace {

using Y = ResidualWrite::Y;

// The shapes and the dtype that a site's tensors share. `name`: of the argument.
struct SiteShape {
  int64_t N, C;
  DType activations;

  void CheckMatrix(Tensor matrix, const char* name) const {
    CheckTensor(matrix, activations, {N, C}, name);
  }
  void CheckWeight(Tensor weight, const char* name) const {
    if (weight && weight.dtype() == DType::kF32 && weight.elements() == C) return;
    CheckTensor(weight, DType::kF32, {C}, name);
  }
  void CheckScales(Tensor scales, const char* name) const {
    CheckTensor(scales, DType::kF32, {kResidualScales, N}, name);
  }

 private:
  static void CheckTensor(Tensor tensor, DType dtype, const Shape& shape, const char* name) {
    if (tensor && tensor.dtype() == dtype && tensor.shape() == shape) return;
    Die(absl::StrFormat("residual %s is %s %s, not %s %s", name, NameOf(tensor.dtype()),
                        tensor.shape(), NameOf(dtype), shape));
  }
};

void CheckRule(const ResidualRead& read) {
  Check(!read.base_norm || read.x == ResidualRead::X::kBase || read.x == ResidualRead::X::kNone,
        "a residual read has one weight of x: base_norm excludes kNorm and kScale");
}

void CheckWrite(const ResidualRead& before, const ResidualWrite& write,
                const ResidualForwardTensors& t, const SiteShape& shape) {
  shape.CheckMatrix(t.o, "o");
  shape.CheckMatrix(t.x_out, "x_out");
  if (before.base_norm) {
    shape.CheckWeight(t.x_weight_before, "x_weight_before");
    shape.CheckScales(t.scales_before, "scales_before");
  }
  if (write.output_norm) {
    shape.CheckWeight(t.output_weight, "output_weight");
    shape.CheckScales(t.scales, "scales");
  }
  if (write.y != Y::kKeep || t.y) shape.CheckMatrix(t.y_out, "y_out");
  if (write.y == Y::kAdd || (write.y == Y::kKeep && t.y_out)) shape.CheckMatrix(t.y, "y");
}

void CheckRead(const ResidualRead& read, Tensor stored_y, const ResidualForwardTensors& t,
               const SiteShape& shape) {
  CheckRule(read);
  shape.CheckMatrix(t.h, "h");
  shape.CheckScales(t.scales, "scales");
  if (UsesXWeight(read)) shape.CheckWeight(t.x_weight, "x_weight");
  if (read.y) {
    shape.CheckMatrix(stored_y, "y");
    shape.CheckWeight(t.y_weight, "y_weight");
  }
  if (read.input_norm) shape.CheckWeight(t.input_weight, "input_weight");
}

void CheckWriteBackward(const ResidualWrite& write, const ResidualBackwardTensors& t,
                        const SiteShape& shape) {
  shape.CheckMatrix(t.d_o, "d_o");
  if (write.y != Y::kKeep) shape.CheckMatrix(t.dy, "dy");
  if (!write.output_norm) return;
  shape.CheckMatrix(t.o, "o");
  shape.CheckScales(t.scales, "scales");
  shape.CheckWeight(t.output_weight, "output_weight");
  shape.CheckWeight(t.doutput_weight, "doutput_weight");
}

void CheckReadBackward(const ResidualRead& read, const ResidualBackwardTensors& t,
                       const SiteShape& shape) {
  CheckRule(read);
  shape.CheckMatrix(t.dh, "dh");
  shape.CheckScales(t.scales, "scales");
  if (UsesXWeight(read)) {
    shape.CheckMatrix(t.x, "x");
    shape.CheckWeight(t.x_weight, "x_weight");
    shape.CheckWeight(t.dx_weight, "dx_weight");
  }
  if (read.y) {
    shape.CheckMatrix(t.y, "y");
    shape.CheckMatrix(t.dy, "dy");
    shape.CheckWeight(t.y_weight, "y_weight");
    shape.CheckWeight(t.dy_weight, "dy_weight");
  }
  if (read.input_norm) {
    shape.CheckMatrix(t.x, "x");
    shape.CheckWeight(t.input_weight, "input_weight");
    shape.CheckWeight(t.dinput_weight, "dinput_weight");
  }
  if (t.h) {
    shape.CheckMatrix(t.h, "h");
    if (read.x != ResidualRead::X::kNone) shape.CheckMatrix(t.x, "x");
  }
}

}  // namespace

bool NormalisesX(const ResidualRead& read) {
  return read.base_norm || read.x == ResidualRead::X::kNorm;
}

bool UsesXWeight(const ResidualRead& read) {
  return NormalisesX(read) || read.x == ResidualRead::X::kScale;
}

void CheckResidualForward(const ResidualSite& site, const ResidualForwardTensors& t) {
  const SiteShape shape = {t.x.dim(0), t.x.dim(1), t.x.dtype()};
  shape.CheckMatrix(t.x, "x");
  Check((site.write == nullptr) == (site.read_before == nullptr),
        "a residual write needs the read of its block, and the read its write");
  if (site.write != nullptr) CheckWrite(*site.read_before, *site.write, t, shape);
  if (site.read != nullptr) CheckRead(*site.read, site.write != nullptr ? t.y_out : t.y, t, shape);
}

void CheckResidualBackward(const ResidualSite& site, const ResidualBackwardTensors& t) {
  const SiteShape shape = {t.dx.dim(0), t.dx.dim(1), t.dx.dtype()};
  shape.CheckMatrix(t.dx, "dx");
  if (site.write != nullptr) CheckWriteBackward(*site.write, t, shape);
  if (site.read != nullptr) CheckReadBackward(*site.read, t, shape);
}

}  // namespace twinstream
