#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/cpu/ops.h"
#include "core/cpu/vector_math.h"
#include "tests/testing/near.h"

namespace twinstream {
namespace {

constexpr int64_t kRows = 7;
constexpr int64_t kWidth = 37;

Tensor TensorOf(std::vector<float>& values, int64_t rows, int64_t columns) {
  return Tensor(reinterpret_cast<std::byte*>(values.data()), DType::kF32, {rows, columns});
}

std::vector<float> Random(int64_t elements, float deviation) {
  std::mt19937 generator(5);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(static_cast<size_t>(elements));
  for (float& v : values) v = normal(generator);
  return values;
}

double SwiGlu(double value, double gate) { return value * gate / (1 + std::exp(-gate)); }

TEST(VectorMathTest, ExpIsWithinTwoUlpsOverItsRange) {
  double worst = 0;
  for (float x = -86.9F; x < 88.72F; x += 0.0011F) {
    const double exact = std::exp(static_cast<double>(x));
    const float rounded = static_cast<float>(exact);
    const double ulp = std::nextafter(rounded, INFINITY) - rounded;
    worst = std::max(worst, std::abs(Exp(x) - exact) / ulp);
  }
  EXPECT_LE(worst, 2);
}

TEST(VectorMathTest, ExpOfTheExtremes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Exp(0), 1);
  EXPECT_EQ(Exp(-kInfinity), 0);
  EXPECT_EQ(Exp(-100), 0);
  EXPECT_EQ(Exp(88.73F), kInfinity);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(Exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(SwiGluTest, ForwardMatchesTheReference) {
  std::vector<float> up = Random(kRows * 2 * kWidth, 2), out(kRows * kWidth, NAN);
  CpuOps().SwiGluForward(TensorOf(out, kRows, kWidth), TensorOf(up, kRows, 2 * kWidth));
  std::vector<double> expected;
  for (size_t n = 0; n < kRows; ++n) {
    for (size_t j = 0; j < kWidth; ++j)
      expected.push_back(SwiGlu(up[n * 2 * kWidth + j], up[n * 2 * kWidth + kWidth + j]));
  }
  EXPECT_LE(testing::RelativeError(out, expected), testing::Float32Tolerance(1));
}

TEST(SwiGluTest, BackwardMatchesDifferencesAndMayBeInPlace) {
  std::vector<float> up = Random(kRows * 2 * kWidth, 2), dout = Random(kRows * kWidth, 1);
  std::vector<double> expected(up.size());
  constexpr double kStep = 1e-5;
  for (size_t n = 0; n < kRows; ++n) {
    for (size_t j = 0; j < kWidth; ++j) {
      const size_t value_at = n * 2 * kWidth + j, gate_at = value_at + kWidth;
      const double value = up[value_at], gate = up[gate_at], d = dout[n * kWidth + j];
      expected[value_at] =
          d * (SwiGlu(value + kStep, gate) - SwiGlu(value - kStep, gate)) / (2 * kStep);
      expected[gate_at] =
          d * (SwiGlu(value, gate + kStep) - SwiGlu(value, gate - kStep)) / (2 * kStep);
    }
  }
  std::vector<float> dup(up.size(), NAN);
  const Tensor up_tensor = TensorOf(up, kRows, 2 * kWidth);
  CpuOps().SwiGluBackward(TensorOf(dup, kRows, 2 * kWidth), TensorOf(dout, kRows, kWidth),
                          up_tensor);
  EXPECT_LE(testing::RelativeError(dup, expected), testing::Float32Tolerance(1));
  CpuOps().SwiGluBackward(up_tensor, TensorOf(dout, kRows, kWidth), up_tensor);
  EXPECT_EQ(up, dup);
}

TEST(SwiGluTest, LargeGatesAreFinite) {
  std::vector<float> up = {2, 2, -200, 200}, out(2), dout = {1, 1}, dup(4);
  CpuOps().SwiGluForward(TensorOf(out, 1, 2), TensorOf(up, 1, 4));
  EXPECT_EQ(out, std::vector<float>({0, 400}));
  CpuOps().SwiGluBackward(TensorOf(dup, 1, 4), TensorOf(dout, 1, 2), TensorOf(up, 1, 4));
  EXPECT_EQ(dup, std::vector<float>({0, 200, 0, 2}));
}

}  // namespace
}  // namespace twinstream
