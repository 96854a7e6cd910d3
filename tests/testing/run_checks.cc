#include "tests/testing/run_checks.h"

#include "gtest/gtest.h"

namespace twinstream::testing {

void ExpectWithinLimits(const Deviations& deviations) {
  EXPECT_LE(deviations.loss, kLossLimit);
  EXPECT_LE(deviations.norm, kNormLimit);
  EXPECT_LE(deviations.gradient, kGradientLimit);
  EXPECT_LE(deviations.weight, kWeightLimit);
}

void ExpectSameBits(const RunRecord& run, const RunRecord& reference) {
  EXPECT_EQ(run.losses, reference.losses);
  EXPECT_EQ(run.gradient_norms, reference.gradient_norms);
  EXPECT_TRUE(run.state == reference.state) << "weights or moments differ";
  EXPECT_EQ(run.unequal_replicas, 0);
}

void ExpectWithinRounding(const RunRecord& run, const RunRecord& reference) {
  EXPECT_LE(LargestRelative(run.losses, reference.losses), kLossLimit);
  EXPECT_LE(LargestRelative(run.gradient_norms, reference.gradient_norms), kNormLimit);
  EXPECT_LE(LargestOfWeights(run.state, reference.state),
            kWeightLimit * TinyJob().optimizer().peak_lr());
  EXPECT_EQ(run.unequal_replicas, 0);
}

}  // namespace twinstream::testing
