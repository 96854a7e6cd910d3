#include "core/maximum.h"

#include <limits>

#include "gtest/gtest.h"

namespace twinstream {
namespace {

TEST(Maximum, NaNOnEitherSideStays) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Maximum(1, 2), 2);
  EXPECT_EQ(Maximum(2, 1), 2);
  EXPECT_EQ(Maximum(-infinity, 1), 1);
  for (double other : {-1.0, 0.0, infinity, nan}) {
    EXPECT_TRUE(std::isnan(Maximum(nan, other)));
    EXPECT_TRUE(std::isnan(Maximum(other, nan)));
  }
}

}  // namespace
}  // namespace twinstream
