// Comparison of float tensors with a double oracle: one tolerance rule, stated here.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace twinstream::testing {

// Largest |actual - expected| over the largest |expected| (at least `floor`): a tensor's small
// elements are not asked for more digits than its large ones carry. A NaN on either side gives NaN,
// which no comparison passes.
double RelativeError(absl::Span<const float> actual, absl::Span<const double> expected,
                     double floor = 1e-6);

// Float32 arithmetic over sums of `terms` products: rounding grows like the square root of the
// number of terms.
double Float32Tolerance(int64_t terms);

}  // namespace twinstream::testing
