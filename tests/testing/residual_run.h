// A residual site on the tested device: random inputs, and memory for what the ops write.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "core/residual_site.h"
#include "tests/testing/reference_residual.h"
#include "tests/testing/residual_cases.h"
#include "tests/testing/tested_ops.h"
#include "tests/testing/vectors.h"

namespace twinstream::testing {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline Tensor TensorOf(Floats& values, const Shape& shape) {
  if (values.empty()) return Tensor();
  return Tensor(reinterpret_cast<std::byte*>(values.data()), DType::kF32, shape);
}

inline Doubles Wide(const Floats& values) { return Doubles(values.begin(), values.end()); }

// A matrix lent to an op, or no tensor where there are no values.
class Matrix {
 public:
  Matrix(Floats& values, const Shape& shape, DType dtype) {
    if (!values.empty()) lent_.emplace(values, shape, dtype);
  }
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator Tensor() const { return lent_ ? Tensor(*lent_) : Tensor(); }

 private:
  std::optional<Lent> lent_;
};

// The float side of a case: random inputs, and memory for what the ops write.
struct SiteRun {
  SiteRun(const ResidualCase& c, int64_t rows, int64_t columns, DType dtype_in = DType::kF32)
      : site(c.site), N(rows), C(columns), dtype(dtype_in) {
    const ResidualRead none;
    const ResidualRead& read = site.read != nullptr ? *site.read : none;
    const bool write = site.write != nullptr;
    x = Random(N * C, 0);
    if (c.y_before) y = Random(N * C, 0);
    if (write) o = Random(N * C, 0);
    if (write && site.read_before->base_norm) x_weight_before = Random(C, 1);
    if (write && site.write->output_norm) output_weight = Random(C, 1);
    if (read.base_norm || read.x == ResidualRead::X::kNorm || read.x == ResidualRead::X::kScale)
      x_weight = Random(C, 1);
    if (read.y) y_weight = Random(C, 1);
    if (read.input_norm) input_weight = Random(C, 1);
    dx = Random(N * C, 0);
    if (c.y_after) dy = Random(N * C, 0);
    if (site.read != nullptr) dh = Random(N * C, 0);
    scales_before.resize(static_cast<size_t>(kResidualScales * N));
    for (int64_t n = 0; n < N; ++n) {
      double sum = 0;
      for (int64_t j = 0; j < C; ++j) sum += std::pow(x[static_cast<size_t>(n * C + j)], 2);
      scales_before[static_cast<size_t>(n)] =
          static_cast<float>(1 / std::sqrt(sum / static_cast<double>(C) + site.eps));
    }
    reference.base = Wide(x);
    if (!x_weight_before.empty())
      reference.base = ReferenceNorm(Wide(x), Wide(x_weight_before), site.eps);
    reference.y = Wide(y);
    reference.o = Wide(o);
    reference.output_weight = Wide(output_weight);
    reference.x_weight = Wide(x_weight);
    reference.y_weight = Wide(y_weight);
    reference.input_weight = Wide(input_weight);
    const auto memory = [](bool exists, int64_t elements) {
      return Floats(exists ? static_cast<size_t>(elements) : 0, NAN);
    };
    x_out = memory(write, N * C);
    y_out = memory(write && c.y_after, N * C);
    h = memory(site.read != nullptr, N * C);
    scales = memory(true, kResidualScales * N);
  }

  // in_place: the streams are written where they were read.
  void Forward(bool in_place) {
    const bool x_in_place = in_place && !x_out.empty();
    const bool y_in_place = in_place && !y_out.empty() && !y.empty();
    if (x_in_place) x_out = x;
    if (y_in_place) y_out = y;
    RunForward(x_in_place, y_in_place);
    if (x_out.empty()) x_out = x;
    if (y_out.empty()) y_out = y;
  }

  void RunForward(bool x_in_place, bool y_in_place) {
    const Shape rows = {N, C};
    const Matrix x_rows(x, rows, dtype), y_rows(y, rows, dtype), x_out_rows(x_out, rows, dtype),
        y_out_rows(y_out, rows, dtype), o_rows(o, rows, dtype), h_rows(h, rows, dtype);
    ops->ResidualForward(site, {.x = x_in_place ? x_out_rows : x_rows,
                                .y = y_in_place ? y_out_rows : y_rows,
                                .o = o_rows,
                                .x_weight_before = TensorOf(x_weight_before, {C}),
                                .scales_before = TensorOf(scales_before, {kResidualScales, N}),
                                .output_weight = TensorOf(output_weight, {C}),
                                .x_out = x_out_rows,
                                .y_out = y_out_rows,
                                .x_weight = TensorOf(x_weight, {C}),
                                .y_weight = TensorOf(y_weight, {C}),
                                .input_weight = TensorOf(input_weight, {C}),
                                .scales = TensorOf(scales, {kResidualScales, N}),
                                .h = h_rows});
  }

  // Of the backward's d_o. Its h, where it is not kOwnMemory, takes y's place if there is one.
  enum class OutputGradient { kOwnMemory, kOverX, kOverDh };

  // Weight gradients start from kOld.
  static constexpr float kOld = 0.25F;
  void Backward(OutputGradient where) {
    const auto old = [](const Floats& weight) { return Floats(weight.size(), kOld); };
    dx_weight = old(x_weight), dy_weight = old(y_weight);
    dinput_weight = old(input_weight), doutput_weight = old(output_weight);
    if (site.write != nullptr) d_o.assign(x.size(), NAN);
    if (site.read != nullptr) h_again.assign(x.size(), NAN);
    const bool h_over_y = where != OutputGradient::kOwnMemory && !h_again.empty() && !y_out.empty();
    RunBackward(where, h_over_y);
    if (h_over_y) h_again = y_out;
    if (site.write == nullptr) return;
    if (where == OutputGradient::kOverX) d_o = x_out;
    if (where == OutputGradient::kOverDh && !dh.empty()) d_o = dh;
  }

  void RunBackward(OutputGradient where, bool h_over_y) {
    const Shape rows = {N, C};
    const Matrix dx_rows(dx, rows, dtype), dy_rows(dy, rows, dtype), dh_rows(dh, rows, dtype),
        x_rows(x_out, rows, dtype), y_rows(y_out, rows, dtype), o_rows(o, rows, dtype),
        d_o_rows(d_o, rows, dtype), h_rows(h_again, rows, dtype);
    const Matrix& d_o_memory = where == OutputGradient::kOverX                   ? x_rows
                               : where == OutputGradient::kOverDh && !dh.empty() ? dh_rows
                                                                                 : d_o_rows;
    ops->ResidualBackward(site, {.dx = dx_rows,
                                 .dy = dy_rows,
                                 .dh = dh_rows,
                                 .x = x_rows,
                                 .y = y_rows,
                                 .x_weight = TensorOf(x_weight, {C}),
                                 .y_weight = TensorOf(y_weight, {C}),
                                 .input_weight = TensorOf(input_weight, {C}),
                                 .scales = TensorOf(scales, {kResidualScales, N}),
                                 .dx_weight = TensorOf(dx_weight, {C}),
                                 .dy_weight = TensorOf(dy_weight, {C}),
                                 .dinput_weight = TensorOf(dinput_weight, {C}),
                                 .o = o_rows,
                                 .output_weight = TensorOf(output_weight, {C}),
                                 .doutput_weight = TensorOf(doutput_weight, {C}),
                                 .d_o = site.write != nullptr ? Tensor(d_o_memory) : Tensor(),
                                 .h = h_over_y ? y_rows : h_rows});
  }

  Floats Random(int64_t elements, float mean) {
    std::normal_distribution<float> normal(mean, mean == 0 ? 1.0F : 0.3F);
    Floats values(static_cast<size_t>(elements));
    for (float& v : values) {
      v = normal(generator);
      if (dtype == DType::kBF16 && mean == 0) v = RoundToBFloat16(v);  // weights stay float32
    }
    return values;
  }

  ResidualSite site;
  int64_t N, C;
  DType dtype;
  std::mt19937 generator{11};
  const Ops* ops = &TestedOps();
  Floats x, y, o, x_weight_before, output_weight, x_weight, y_weight, input_weight, scales_before;
  Floats x_out, y_out, h, scales;
  Floats dx, dy, dh, d_o, h_again, dx_weight, dy_weight, dinput_weight, doutput_weight;
  ResidualInputs reference;
};

}  // namespace twinstream::testing
