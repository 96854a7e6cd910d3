#include "launch/generation.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace twinstream {
namespace {

constexpr double kLargestUniform = 1 - 0x1p-53;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SampleToken, TemperatureZeroTakesTheFirstOfTheLikeliest) {
  for (double uniform : {0.0, 0.5, kLargestUniform}) {
    EXPECT_EQ(SampleToken({1, 3, -2, 3}, 0, uniform), 1);
  }
}

TEST(SampleToken, DrawsEveryTokenAsOftenAsItsProbability) {
  const std::vector<float> logits = {0.5F, -1, 2, 0};
  for (double temperature : {0.5, 1.0, 3.0}) {
    constexpr int kDraws = 100000;
    std::vector<int> counts(logits.size());
    for (int i = 0; i < kDraws; ++i) {
      ++counts[static_cast<size_t>(SampleToken(logits, temperature, (i + 0.5) / kDraws))];
    }
    double sum = 0;
    for (float logit : logits) sum += std::exp(logit / temperature);
    for (size_t v = 0; v < logits.size(); ++v) {
      EXPECT_NEAR(counts[v], kDraws * std::exp(logits[v] / temperature) / sum, 1.01);
    }
  }
}

TEST(SampleToken, TheExtremesDrawTheFirstAndTheLastTokenThatCanBe) {
  const std::vector<float> logits = {-kInfinity, 1, 0, 2, -kInfinity, -1e30F};
  EXPECT_EQ(SampleToken(logits, 1, 0), 1);
  EXPECT_EQ(SampleToken(logits, 1, kLargestUniform), 3);
}

TEST(SampleToken, ATinyTemperatureIsGreedyAndLargeLogitsDoNotOverflow) {
  for (double uniform : {0.0, 0.5, kLargestUniform}) {
    EXPECT_EQ(SampleToken({1, 1.001F, 0}, 1e-300, uniform), 1);
    EXPECT_EQ(SampleToken({1e30F, 3e38F, -3e38F}, 1, uniform), 1);
  }
}

}  // namespace
}  // namespace twinstream
