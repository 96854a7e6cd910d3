#include "launch/lr_schedule.h"

#include <map>

#include "gtest/gtest.h"

namespace twinstream {
namespace {

using Rates = std::map<int64_t, double>;  // learning rate by update

OptimizerSpec Spec(OptimizerSpec::Schedule schedule) {
  OptimizerSpec optimizer;
  optimizer.set_schedule(schedule);
  optimizer.set_peak_lr(2);
  optimizer.set_warmup_steps(4);
  optimizer.set_final_fraction(0.1);
  optimizer.set_decay_fraction(0.25);
  return optimizer;
}

// 20 updates, 4 of them warm-up; worked out by hand.
const std::map<OptimizerSpec::Schedule, Rates>& Expected() {
  static const auto& rates = *new std::map<OptimizerSpec::Schedule, Rates>{
      {OptimizerSpec::COSINE,
       {{5, 1.982706752}, {8, 1.736396103}, {12, 1.1}, {16, 0.463603897}, {20, 0.2}}},
      {OptimizerSpec::CONSTANT, {{5, 2}, {12, 2}, {20, 2}}},
      {OptimizerSpec::LINEAR, {{5, 1.8875}, {8, 1.55}, {12, 1.1}, {16, 0.65}, {20, 0.2}}},
      {OptimizerSpec::WSD, {{5, 2}, {15, 2}, {16, 1.64}, {17, 1.28}, {19, 0.56}, {20, 0.2}}}};
  return rates;
}

TEST(LearningRate, FollowsTheTableOfEverySchedule) {
  const auto* descriptor = OptimizerSpec::Schedule_descriptor();
  for (int i = 0; i < descriptor->value_count(); ++i) {
    SCOPED_TRACE(descriptor->value(i)->name());
    const auto schedule = static_cast<OptimizerSpec::Schedule>(descriptor->value(i)->number());
    ASSERT_EQ(Expected().count(schedule), 1u) << "no table for this schedule";
    Rates rates = Expected().at(schedule);
    rates.insert({{1, 0.5}, {2, 1}, {3, 1.5}, {4, 2}});
    for (const auto& [update, rate] : rates) {
      EXPECT_NEAR(LearningRate(Spec(schedule), update, 20), rate, 1e-9) << "update " << update;
    }
  }
}

TEST(LearningRate, StartsAtThePeakOrBelowWithoutWarmUp) {
  OptimizerSpec optimizer = Spec(OptimizerSpec::LINEAR);
  optimizer.set_warmup_steps(0);
  EXPECT_NEAR(LearningRate(optimizer, 1, 10), 1.82, 1e-12);
  EXPECT_NEAR(LearningRate(optimizer, 10, 10), 0.2, 1e-12);
}

TEST(LearningRate, WarmUpMayLastTheWholeRunOrLonger) {
  OptimizerSpec optimizer = Spec(OptimizerSpec::COSINE);
  EXPECT_EQ(LearningRate(optimizer, 4, 4), 2);
  optimizer.set_warmup_steps(8);
  EXPECT_EQ(LearningRate(optimizer, 4, 4), 1);
}

// Half an update of decay: the last update is still at the final fraction, all before at the peak.
TEST(LearningRate, DecayShorterThanAnUpdateReachesTheEnd) {
  OptimizerSpec optimizer = Spec(OptimizerSpec::WSD);
  optimizer.set_decay_fraction(0.025);
  EXPECT_EQ(LearningRate(optimizer, 19, 20), 2);
  EXPECT_NEAR(LearningRate(optimizer, 20, 20), 0.2, 1e-12);
  optimizer.set_decay_fraction(0);
  EXPECT_EQ(LearningRate(optimizer, 20, 20), 2);
}

}  // namespace
}  // namespace twinstream
