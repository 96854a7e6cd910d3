#include "parallel/initializer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace twinstream {
namespace {

using ::testing::Each;

std::vector<float> Draw(const Shape& global, const Box& box, float std = 1, uint64_t seed = 7,
                        const std::string& name = "layers.0.mlp.up.weight") {
  std::vector<float> values(static_cast<size_t>(box.elements()), NAN);
  InitializeBox(std, seed, name, global, box, values.data());
  return values;
}

std::vector<float> DrawWhole(const Shape& global, float std = 1, uint64_t seed = 7,
                             const std::string& name = "layers.0.mlp.up.weight") {
  return Draw(global, Box::Whole(global), std, seed, name);
}

TEST(InitializeBox, AnyBoxIsTheSliceOfTheWhole) {
  const Shape global{5, 7, 301};
  const std::vector<float> whole = DrawWhole(global);
  for (const Box& box : {Box{{1, 2, 3}, {3, 4, 290}}, Box{{0, 0, 300}, {5, 7, 1}},
                         Box{{4, 6, 0}, {1, 1, 301}}, Box{{2, 1, 5}, {2, 3, 6}}}) {
    const std::vector<float> part = Draw(global, box);
    size_t next = 0;
    for (int64_t i = 0; i < box.extent[0]; ++i)
      for (int64_t j = 0; j < box.extent[1]; ++j)
        for (int64_t k = 0; k < box.extent[2]; ++k) {
          const int64_t index =
              ((box.begin[0] + i) * global[1] + box.begin[1] + j) * global[2] + box.begin[2] + k;
          ASSERT_EQ(part[next++], whole[static_cast<size_t>(index)]) << box.ToString();
        }
  }
}

TEST(InitializeBox, AnEmptyBoxWritesNothing) {
  const Shape global{4, 6};
  float untouched = 5;
  InitializeBox(1, 7, "name", global, {{2, 0}, {2, 0}}, &untouched);
  InitializeBox(1, 7, "name", global, {{4, 0}, {0, 6}}, &untouched);
  EXPECT_EQ(untouched, 5);
}

// Standard normal truncated at +-3: variance 1 - 6 phi(3) / (2 Phi(3) - 1); a share erf(1/sqrt 2) /
// erf(3/sqrt 2) within one standard deviation.
TEST(InitializeBox, MomentsAreThoseOfATruncatedNormal) {
  const std::vector<float> values = DrawWhole({1000, 1000}, 0.02F);
  double sum = 0, squares = 0, fourth = 0, inside = 0;
  for (float value : values) {
    const double z = value / 0.02;
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
    inside += std::abs(z) < 1 ? 1 : 0;
  }
  const double n = static_cast<double>(values.size());
  const double density = std::exp(-4.5) / std::sqrt(2 * M_PI), mass = std::erf(3 / std::sqrt(2.0));
  const double variance = 1 - 6 * density / mass;
  // Five standard errors of a million draws each.
  EXPECT_NEAR(sum / n, 0, 5e-3);
  EXPECT_NEAR(squares / n, variance, 7e-3);
  EXPECT_NEAR(fourth / n, 3 * variance - 54 * density / mass, 5e-2);
  EXPECT_NEAR(inside / n, std::erf(1 / std::sqrt(2.0)) / mass, 2.5e-3);
}

TEST(InitializeBox, EveryPartOfTheRangeIsReachedAndNothingBeyond) {
  const std::vector<float> values = DrawWhole({2000, 1000});
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  EXPECT_GE(*least, -3);
  EXPECT_LE(*most, 3);
  EXPECT_LT(*least, -2.99);
  EXPECT_GT(*most, 2.99);
}

// The distribution function at each decile, where centre and tail formulas meet included.
TEST(InitializeBox, ValuesFollowTheNormalDistribution) {
  std::vector<float> values = DrawWhole({1000, 1000});
  std::sort(values.begin(), values.end());
  const double mass = std::erf(3 / std::sqrt(2.0));
  for (const double z : {-2.5, -1.5, -1.43953, -1.0, -0.1, 0.0, 0.7, 1.43953, 1.45, 2.0, 2.9}) {
    const double below = static_cast<double>(
        std::lower_bound(values.begin(), values.end(), static_cast<float>(z)) - values.begin());
    const double expected = 0.5 + 0.5 * std::erf(z / std::sqrt(2.0)) / mass;
    EXPECT_NEAR(below / static_cast<double>(values.size()), expected, 2.5e-3) << z;
  }
}

TEST(InitializeBox, OtherSeedsAndNamesGiveOtherValues) {
  const Shape global{8, 16};
  const std::vector<float> values = DrawWhole(global);
  for (const auto& other : {DrawWhole(global, 1, 8), DrawWhole(global, 1, 7 + (uint64_t{1} << 40)),
                            DrawWhole(global, 1, 7, "layers.1.mlp.up.weight")}) {
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NE(values[i], other[i]);
  }
}

TEST(InitializeBox, ElementsOfOneTensorDiffer) {
  std::vector<float> values = DrawWhole({100, 10});
  std::sort(values.begin(), values.end());
  EXPECT_EQ(std::adjacent_find(values.begin(), values.end()), values.end());
}

TEST(InitializeBox, StandardDeviationScales) {
  const std::vector<float> unit = DrawWhole({4, 9}), half = DrawWhole({4, 9}, 0.5F);
  for (size_t i = 0; i < unit.size(); ++i) EXPECT_EQ(half[i], 0.5F * unit[i]);
}

TEST(InitializeBox, WithoutDeviationAllAreOne) { EXPECT_THAT(DrawWhole({33}, 0), Each(1.0F)); }

}  // namespace
}  // namespace twinstream
