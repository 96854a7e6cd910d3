#include "tests/testing/vectors.h"

#include <random>

namespace twinstream::testing {

std::vector<float> RandomFloats(int64_t count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(engine);
  return values;
}

std::vector<double> ToDouble(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace twinstream::testing
