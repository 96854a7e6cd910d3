#include "tests/testing/near.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace twinstream::testing {

double RelativeError(absl::Span<const float> actual, absl::Span<const double> expected,
                     double floor) {
  Check(actual.size() == expected.size(), "%d values against %d", actual.size(), expected.size());
  double largest = floor, worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(static_cast<double>(actual[i]) - expected[i]);
    if (std::isnan(difference)) return std::numeric_limits<double>::quiet_NaN();
    largest = std::max(largest, std::abs(expected[i]));
    worst = std::max(worst, difference);
  }
  return worst / largest;
}

double Float32Tolerance(int64_t terms) {
  return 4e-7 * std::sqrt(static_cast<double>(terms) + 4.0);
}

double Tolerance(DType dtype, int64_t terms, int roundings) {
  return Float32Tolerance(terms) + (dtype == DType::kBF16 ? roundings * kBFloat16Epsilon : 0);
}

}  // namespace twinstream::testing
