#include "core/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

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

}  // namespace
}  // namespace twinstream::TWINSTREAM_CPU_ISA
