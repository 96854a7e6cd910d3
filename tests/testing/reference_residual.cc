#include "tests/testing/reference_residual.h"

#include <cmath>

namespace twinstream::testing {
namespace {

using Values = std::vector<double>;

Values Plus(const Values& a, const Values& b) {
  if (a.empty()) return b;
  Values sum = a;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

Values Times(double factor, const Values& a) {
  Values product = a;
  for (double& v : product) v *= factor;
  return product;
}

Values WeightedRows(const Values& v, const Values& weight) {
  Values product = v;
  for (size_t i = 0; i < v.size(); ++i) product[i] *= weight[i % weight.size()];
  return product;
}

double Dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < b.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void Write(const ResidualWrite& write, double eps, const ResidualInputs& in, ResidualOutputs& out) {
  const Values p = write.output_norm ? ReferenceNorm(in.o, in.output_weight, eps) : in.o;
  out.x = Plus(Times(write.base_gain, in.base), Times(write.x_gain, p));
  if (write.y == ResidualWrite::Y::kAdd) out.y = Plus(in.y, p);
  if (write.y == ResidualWrite::Y::kSet) out.y = Plus(in.base, p);
}

void Read(const ResidualRead& read, double eps, const ResidualInputs& in, ResidualOutputs& out) {
  if (read.base_norm) out.base = ReferenceNorm(out.x, in.x_weight, eps);
  Values u;
  switch (read.x) {
    case ResidualRead::X::kNone:
      break;
    case ResidualRead::X::kBase:
      u = out.base;
      break;
    case ResidualRead::X::kNorm:
      u = ReferenceNorm(out.x, in.x_weight, eps);
      break;
    case ResidualRead::X::kScale:
      u = WeightedRows(out.x, in.x_weight);
      break;
  }
  if (read.y) u = Plus(u, ReferenceNorm(out.y, in.y_weight, eps));
  out.h = read.input_norm ? ReferenceNorm(u, in.input_weight, eps) : u;
}

}  // namespace

Values ReferenceNorm(const Values& v, const Values& weight, double eps) {
  const size_t C = weight.size();
  Values normed = WeightedRows(v, weight);
  for (size_t row = 0; row < v.size(); row += C) {
    double sum = 0;
    for (size_t j = 0; j < C; ++j) sum += v[row + j] * v[row + j];
    const double rms = std::sqrt(sum / static_cast<double>(C) + eps);
    for (size_t j = 0; j < C; ++j) normed[row + j] /= rms;
  }
  return normed;
}

ResidualOutputs ReferenceResidual(const ResidualSite& site, const ResidualInputs& in) {
  ResidualOutputs out = {.x = in.base, .y = in.y, .base = {}, .h = {}};
  if (site.write != nullptr) Write(*site.write, site.eps, in, out);
  out.base = out.x;
  if (site.read != nullptr) Read(*site.read, site.eps, in, out);
  return out;
}

ResidualInputs ReferenceResidualGradients(const ResidualSite& site, const ResidualInputs& in,
                                          const Values& dbase, const Values& dy, const Values& dh) {
  constexpr double kStep = 1e-5;
  ResidualInputs moved = in;
  const auto loss = [&] {
    const ResidualOutputs out = ReferenceResidual(site, moved);
    return Dot(out.base, dbase) + Dot(out.y, dy) + Dot(out.h, dh);
  };
  ResidualInputs gradients;
  for (Values ResidualInputs::*input :
       {&ResidualInputs::base, &ResidualInputs::y, &ResidualInputs::o,
        &ResidualInputs::output_weight, &ResidualInputs::x_weight, &ResidualInputs::y_weight,
        &ResidualInputs::input_weight}) {
    for (double& v : moved.*input) {
      const double kept = v;
      v = kept + kStep;
      const double above = loss();
      v = kept - kStep;
      const double below = loss();
      v = kept;
      (gradients.*input).push_back((above - below) / (2 * kStep));
    }
  }
  return gradients;
}

}  // namespace twinstream::testing
