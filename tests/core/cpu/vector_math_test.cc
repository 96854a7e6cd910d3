#include "core/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

// The largest relative error over what is allowed, x from first to last.
template <class Computed, class Exact, class Allowed>
double WorstOver(float first, float last, Computed computed, Exact exact, Allowed allowed) {
  double worst = 0;
  for (float x = first; x < last; x += 0.0011F) {
    const double right = exact(static_cast<double>(x));
    const Vector lanes = computed(AllLanes(x));
    worst = std::max(worst, std::abs(lanes[0] / right - 1) / allowed(x));
  }
  return worst;
}

TEST(VectorMathTest, Exp2IsPreciseOverItsRange) {
  const double worst = WorstOver(
      -124.9F, 127.99F, Exp2, [](double x) { return std::exp2(x); }, [](float) { return 0x1p-23; });
  EXPECT_LE(worst, 1);
}

TEST(VectorMathTest, ExpIsAsPreciseAsItsRoundedArgument) {
  const double worst = WorstOver(
      -86.5F, 88.72F, Exp, [](double x) { return std::exp(x); },
      [](float x) { return (1 + std::abs(x)) * 0x1p-23; });
  EXPECT_LE(worst, 1);
}

TEST(VectorMathTest, PowersOfTheExtremes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    float x, power;
  };
  for (const Case c : {Case{0, 1}, Case{-kInfinity, 0}, Case{-100, 0}, Case{88.73F, kInfinity},
                       Case{1e30F, kInfinity}, Case{kInfinity, kInfinity}}) {
    EXPECT_EQ(Exp(AllLanes(c.x))[0], c.power) << c.x;
  }
  for (const Case c : {Case{0, 1}, Case{-kInfinity, 0}, Case{-1e30F, 0}, Case{-126.01F, 0},
                       Case{128, kInfinity}, Case{1e30F, kInfinity}, Case{kInfinity, kInfinity}}) {
    EXPECT_EQ(Exp2(AllLanes(c.x))[0], c.power) << c.x;
  }
  EXPECT_TRUE(std::isnan(Exp(AllLanes(kNan))[0]));
  EXPECT_TRUE(std::isnan(Exp2(AllLanes(kNan))[0]));
}

// Where instruction sets may differ: a power is 0 or right, and never denormal.
TEST(VectorMathTest, TheSmallestPowersAreZeroOrNormal) {
  for (float x = -126; x < -125; x += 0.001F) {
    const float power = Exp2(AllLanes(x))[0];
    if (power == 0) continue;
    EXPECT_TRUE(std::isnormal(power)) << x;
    EXPECT_NEAR(power / std::exp2(static_cast<double>(x)), 1, 0x1p-22) << x;
  }
}

}  // namespace
}  // namespace twinstream::TWINSTREAM_CPU_ISA
