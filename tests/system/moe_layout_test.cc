// Mixtures of experts on every legal layout of 1, 2, 4 and 8 ranks: the reference's numbers where a
// step is one micro-batch, one rank's that accumulates the same micro-batches where there are more.
#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"
#include "tests/testing/golden_run.h"
#include "tests/testing/run_checks.h"

namespace twinstream::testing {
namespace {

class MoeLayoutTest : public ::testing::TestWithParam<std::string> {};

TEST_P(MoeLayoutTest, OneMicroBatchOnEveryLegalLayoutGivesTheReference) {
  const GoldenRun golden(GetParam());
  const double load_balance = golden.golden().Scalar("load_balance"),
               router_z = golden.golden().Scalar("router_z");
  int layouts = 0, with_experts_apart = 0;
  Deviations worst;
  for (int ranks : {1, 2, 4, 8}) {
    for (const JobSpec& job : golden.LegalJobs(ranks)) {
      if (AccumulationSteps(job) != 1) continue;
      SCOPED_TRACE(LayoutName(job));
      const TrainedRun run = golden.Train(job);
      const Deviations d = Compare(run, golden.golden());
      ExpectWithinLimits(d);
      EXPECT_NEAR(run.first.load_balance / load_balance, 1, kLossLimit);
      EXPECT_NEAR(run.first.router_z / router_z, 1, kLossLimit);
      worst = {std::max(worst.loss, d.loss), std::max(worst.norm, d.norm),
               std::max(worst.gradient, d.gradient), std::max(worst.weight, d.weight)};
      ++layouts;
      with_experts_apart += job.parallel().expert() > 1 ? 1 : 0;
    }
  }
  std::printf(
      "%s: %d layouts, worst differences: loss %.1e, norm %.1e, gradient %.1e, weights %.2f "
      "learning rates\n",
      GetParam().c_str(), layouts, worst.loss, worst.norm, worst.gradient, worst.weight);
  EXPECT_GT(layouts, 20);
  EXPECT_GT(with_experts_apart, 5);
}

INSTANTIATE_TEST_SUITE_P(Moe, MoeLayoutTest, ::testing::ValuesIn(MoeGoldenFiles()),
                         [](const ::testing::TestParamInfo<std::string>& file) {
                           return file.param;
                         });

}  // namespace
}  // namespace twinstream::testing
