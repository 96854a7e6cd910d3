#include "core/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace twinstream {
namespace {

// All values of the format that are not NaN, in ascending order.
float NextAbove(float value) {
  BFloat16 next = RoundToBFloat16(value);
  next.bits = static_cast<uint16_t>(next.bits + 1);  // positive values count up
  return next;
}

TEST(BFloat16Test, EveryValueSurvivesTheWayThroughFloat32) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 value = {static_cast<uint16_t>(bits)};
    const BFloat16 back = RoundToBFloat16(value);
    if (std::isnan(static_cast<float>(value))) {
      EXPECT_TRUE(std::isnan(static_cast<float>(back)));
    } else {
      ASSERT_EQ(back.bits, value.bits);
    }
  }
}

// Against the definition: between two neighbours the nearer one, in the middle the even one.
TEST(BFloat16Test, RoundsToTheNearestAndTiesToEven) {
  for (uint16_t bits = 0; bits < 0x7F7F; ++bits) {
    const BFloat16 below = {bits};
    const float lower = below, upper = NextAbove(lower), middle = lower + (upper - lower) / 2;
    const float even = bits % 2 == 0 ? lower : upper;
    for (float sign : {1.0F, -1.0F}) {
      ASSERT_EQ(static_cast<float>(RoundToBFloat16(sign * middle)), sign * even);
      ASSERT_EQ(static_cast<float>(RoundToBFloat16(sign * std::nextafter(middle, lower))),
                sign * lower);
      ASSERT_EQ(static_cast<float>(RoundToBFloat16(sign * std::nextafter(middle, upper))),
                sign * upper);
    }
  }
}

TEST(BFloat16Test, OverflowIsInfiniteAndNanStaysNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(RoundToBFloat16(std::numeric_limits<float>::max())), kInfinity);
  EXPECT_EQ(static_cast<float>(RoundToBFloat16(-kInfinity)), -kInfinity);
  // A NaN all of whose set bits are cut off, and one that rounding up would carry into the sign.
  for (uint32_t bits : {0x7F800001U, 0x7FFFFFFFU, 0xFFFFFFFFU}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(RoundToBFloat16(std::bit_cast<float>(bits)))));
  }
}

}  // namespace
}  // namespace twinstream
