// Comparison of float tensors with a double oracle: one tolerance rule, stated here.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace twinstream::testing {

// Largest |actual - expected| over the largest |expected| (at least `floor`), so that a tensor's small elements are not
// asked for more digits than its large ones carry.
template <typename T>
double RelativeError(absl::Span<const T> actual, absl::Span<const double> expected, double floor = 1e-6) {
  double largest = floor, worst = 0;
  for (double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(static_cast<double>(actual[i]) - expected[i]);
    if (!(difference <= worst)) worst = difference;  // a NaN is the worst
  }
  return worst / largest;
}

// Float32 arithmetic over sums of `terms` products: rounding grows like the square root of the number of terms.
inline double Float32Tolerance(int64_t terms) { return 4e-7 * std::sqrt(static_cast<double>(terms) + 4.0); }

}  // namespace twinstream::testing
