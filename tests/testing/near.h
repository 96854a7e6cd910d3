// Comparison of float tensors with a double oracle: one tolerance rule, stated here.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "core/tensor.h"

namespace twinstream::testing {

// Largest |actual - expected| over the largest |expected| (at least `floor`): a tensor's small
// elements are not asked for more digits than its large ones carry. A NaN on either side gives NaN,
// which no comparison passes.
double RelativeError(absl::Span<const float> actual, absl::Span<const double> expected,
                     double floor = 1e-6);

// Float32 arithmetic over sums of `terms` products: rounding grows like the square root of the
// number of terms.
double Float32Tolerance(int64_t terms);

// What rounding to bf16 may change, relatively: half of the distance 2^-7 between neighbours at 1.
constexpr double kBFloat16Epsilon = 0x1p-8;

// Of an op on activations of `dtype` whose results have been rounded to it `roundings` times on
// their way from the inputs, and whose sums have `terms` products in float32.
double Tolerance(DType dtype, int64_t terms, int roundings = 1);

}  // namespace twinstream::testing
