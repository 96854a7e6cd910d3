// The arithmetic of a residual site (core/ops.h) in naive double loops: the oracle.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ops.h"

namespace twinstream::testing {

// Everything that a site reads, and so everything that has a gradient. Matrices are [N, C], weights
// [C]; what the site does not use is empty.
struct ResidualInputs {
  std::vector<double> base;  // of the write, already normalised; x itself without a write
  std::vector<double> y;
  std::vector<double> o;
  std::vector<double> output_weight, x_weight, y_weight, input_weight;
};

struct ResidualOutputs {
  std::vector<double> x, y;  // the streams that the site stores
  std::vector<double> base;  // of the read; x without a read
  std::vector<double> h;     // empty without a read
};

// weight . v / sqrt(mean(v^2) + eps), row by row.
std::vector<double> ReferenceNorm(const std::vector<double>& v, const std::vector<double>& weight,
                                  double eps);

ResidualOutputs ReferenceResidual(const ResidualSite& site, const ResidualInputs& in);

// Gradients of <x or base, dbase> + <y, dy> + <h, dh> with respect to every input, by central
// differences: shares no formula with an analytic backward. dy and dh may be empty.
ResidualInputs ReferenceResidualGradients(const ResidualSite& site, const ResidualInputs& in,
                                          const std::vector<double>& dbase,
                                          const std::vector<double>& dy,
                                          const std::vector<double>& dh);

}  // namespace twinstream::testing
