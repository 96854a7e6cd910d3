#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/testing/near.h"
#include "tests/testing/tested_ops.h"
#include "tests/testing/vectors.h"

namespace twinstream {
namespace {

constexpr int64_t kRows = 7;
constexpr int64_t kWidths[] = {37, 40};  // 40: packs of 16 bytes of either type

using testing::Lent;
using testing::Tolerance;

// Normal values of standard deviation 2.
std::vector<float> RandomUp(int64_t width, DType dtype) {
  std::vector<float> up = testing::RandomFloats(kRows * 2 * width, 5, dtype);
  for (float& v : up) v *= 2;
  return up;
}

double SwiGlu(double value, double gate) { return value * gate / (1 + std::exp(-gate)); }

class SwiGluTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, SwiGluTest, ::testing::ValuesIn(testing::kActivationTypes),
                         [](const auto& type) { return std::string(NameOf(type.param)); });

TEST_P(SwiGluTest, ForwardMatchesTheReference) {
  for (const int64_t F : kWidths) {
    std::vector<float> up = RandomUp(F, GetParam()), out(static_cast<size_t>(kRows * F), NAN);
    testing::TestedOps().SwiGluForward(Lent(out, {kRows, F}, GetParam()),
                                       Lent(up, {kRows, 2 * F}, GetParam()));
    std::vector<double> expected;
    for (int64_t n = 0; n < kRows; ++n) {
      const float* const row = &up[static_cast<size_t>(n * 2 * F)];
      for (int64_t j = 0; j < F; ++j) expected.push_back(SwiGlu(row[j], row[F + j]));
    }
    EXPECT_LE(testing::RelativeError(out, expected), Tolerance(GetParam(), 1)) << F << " columns";
  }
}

// Of sum(dout . out), by central differences.
std::vector<double> ExpectedGradient(int64_t F, const std::vector<float>& up,
                                     const std::vector<float>& dout) {
  constexpr double kStep = 1e-5;
  const auto columns = static_cast<size_t>(F);
  std::vector<double> expected(up.size());
  for (size_t n = 0; n < kRows; ++n) {
    for (size_t j = 0; j < columns; ++j) {
      const size_t value_at = n * 2 * columns + j, gate_at = value_at + columns;
      const double value = up[value_at], gate = up[gate_at], d = dout[n * columns + j];
      expected[value_at] =
          d * (SwiGlu(value + kStep, gate) - SwiGlu(value - kStep, gate)) / (2 * kStep);
      expected[gate_at] =
          d * (SwiGlu(value, gate + kStep) - SwiGlu(value, gate - kStep)) / (2 * kStep);
    }
  }
  return expected;
}

TEST_P(SwiGluTest, BackwardMatchesDifferencesAndMayBeInPlace) {
  for (const int64_t F : kWidths) {
    std::vector<float> up = RandomUp(F, GetParam()),
                       dout = testing::RandomFloats(kRows * F, 6, GetParam());
    const std::vector<double> expected = ExpectedGradient(F, up, dout);
    std::vector<float> dup(up.size(), NAN);
    const Shape shape = {kRows, F}, up_shape = {kRows, 2 * F};
    testing::TestedOps().SwiGluBackward(Lent(dup, up_shape, GetParam()),
                                        Lent(dout, shape, GetParam()),
                                        Lent(up, up_shape, GetParam()));
    EXPECT_LE(testing::RelativeError(dup, expected), Tolerance(GetParam(), 1)) << F << " columns";
    {
      const Lent in_place(up, up_shape, GetParam());
      testing::TestedOps().SwiGluBackward(in_place, Lent(dout, shape, GetParam()), in_place);
    }
    EXPECT_EQ(up, dup);
  }
}

TEST_P(SwiGluTest, LargeGatesAreFinite) {
  std::vector<float> up = {2, 2, -200, 200}, out(2), dout = {1, 1}, dup(4);
  testing::TestedOps().SwiGluForward(Lent(out, {1, 2}, GetParam()), Lent(up, {1, 4}, GetParam()));
  EXPECT_EQ(out, std::vector<float>({0, 400}));
  testing::TestedOps().SwiGluBackward(Lent(dup, {1, 4}, GetParam()), Lent(dout, {1, 2}, GetParam()),
                                      Lent(up, {1, 4}, GetParam()));
  EXPECT_EQ(dup, std::vector<float>({0, 200, 0, 2}));
}

}  // namespace
}  // namespace twinstream
