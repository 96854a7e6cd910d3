#include "tests/testing/vectors.h"

#include <random>

namespace twinstream::testing {

std::vector<float> RandomFloats(int64_t count, uint64_t seed, DType dtype) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = normal(engine);
    if (dtype == DType::kBF16) value = RoundToBFloat16(value);
  }
  return values;
}

float FarApart(int64_t number) {
  const uint32_t hash = static_cast<uint32_t>(number + 1) * 2654435761U;
  return (static_cast<float>(hash >> 8) / (1 << 24) - 0.5F) * static_cast<float>(1 << (hash % 20));
}

Lent::Lent(std::vector<float>& values, const Shape& shape, DType dtype) : values_(values) {
  if (dtype == DType::kF32) {
    tensor_ = View(values, shape);
    return;
  }
  for (float value : values) narrow_.push_back(RoundToBFloat16(value));
  tensor_ = View(narrow_, shape);
}

Lent::~Lent() {
  if (tensor_.dtype() == DType::kBF16) values_.assign(narrow_.begin(), narrow_.end());
}

std::vector<double> ToDouble(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace twinstream::testing
