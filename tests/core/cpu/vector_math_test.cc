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
    const Vector lanes = Exp(AllLanes(x));
    worst = std::max({worst, std::abs(Exp(x) - exact) / ulp, std::abs(lanes[0] - exact) / ulp});
  }
  EXPECT_LE(worst, 2);
}

TEST(VectorMathTest, ExpOfTheExtremes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  struct Case {
    float x, power;
  };
  for (const Case c : {Case{0, 1}, Case{-kInfinity, 0}, Case{-100, 0}, Case{88.73F, kInfinity},
                       Case{kInfinity, kInfinity}}) {
    EXPECT_EQ(Exp(c.x), c.power) << c.x;
    EXPECT_EQ(Exp(AllLanes(c.x))[0], c.power) << c.x;
  }
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(Exp(kNan)));
  EXPECT_TRUE(std::isnan(Exp(AllLanes(kNan))[0]));
}

}  // namespace
}  // namespace twinstream::TWINSTREAM_CPU_ISA
