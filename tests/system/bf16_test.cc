// train.precision BF16: what must not change a bit does not, and what layouts may change is bf16's
// rounding.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "launch/expected_rounding.h"
#include "tests/testing/golden_run.h"
#include "tests/testing/run_checks.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

JobSpec Bf16Job() {
  JobSpec job = TinyJob();
  job.mutable_train()->set_precision(TrainSpec::BF16);
  return job;
}

// A dense model and a mixture of experts.
std::vector<JobSpec> Bf16Jobs() {
  JobSpec moe = Bf16Job();
  moe.mutable_model()->mutable_moe()->set_experts(12);
  moe.mutable_model()->mutable_moe()->set_top_k(3);
  return {Bf16Job(), moe};
}

// Data ranks share out experts where there are some.
JobSpec On(const JobSpec& job, Layout layout) {
  if (job.model().has_moe()) layout.expert = layout.data;
  return OnLayout(job, layout);
}

TEST(Bf16Test, PipelineAndScheduleDoNotChangeABit) {
  for (const JobSpec& job : Bf16Jobs()) {
    for (int data : {1, 2}) {
      const RunRecord reference = RunSteps(On(job, {.data = data}), {.last = 2});
      std::vector<Layout> layouts = Pipelines(2, static_cast<int>(job.model().layers()));
      layouts.push_back({.pipeline = 4});
      for (Layout layout : layouts) {
        layout.data = data;
        SCOPED_TRACE(NameOf(layout));
        ExpectSameBits(RunSteps(On(job, layout), {.last = 2}), reference);
      }
    }
  }
}

TEST(Bf16Test, ShardingTheOptimizerDoesNotChangeABit) {
  for (JobSpec job : Bf16Jobs()) {
    for (const Layout& layout : {Layout{.data = 3}, Layout{.tensor = 2, .data = 2}}) {
      SCOPED_TRACE(NameOf(layout));
      job.mutable_model()->set_tied_embeddings(true);
      job.mutable_parallel()->set_shard_optimizer(false);
      const RunRecord whole = RunSteps(On(job, layout), {.last = 3});
      job.mutable_parallel()->set_shard_optimizer(true);
      ExpectSameBits(RunSteps(On(job, layout), {.last = 3}), whole);
    }
  }
}

// What is computed again is read from the same rounded streams.
TEST(Bf16Test, RecomputationDoesNotChangeABit) {
  const Layout layout = {.tensor = 2, .data = 2, .sequence_parallel = true};
  for (JobSpec job : Bf16Jobs()) {
    const RunRecord reference = RunSteps(On(job, layout), {.last = 2});
    for (ParallelSpec::Recompute recompute : {ParallelSpec::SELECTIVE, ParallelSpec::FULL}) {
      job.mutable_parallel()->set_recompute(recompute);
      ExpectSameBits(RunSteps(On(job, layout), {.last = 2}), reference);
    }
  }
}

// The float32 masters come back whole, and the bf16 copies from them, on every data rank.
TEST(Bf16Test, FourStepsEqualTwoAndTwoBitForBit) {
  for (const JobSpec& model : Bf16Jobs()) {
    for (const Layout& layout :
         {Layout{}, Layout{.data = 3}, Layout{.tensor = 2, .sequence_parallel = true},
          Layout{.pipeline = 2, .data = 2}}) {
      SCOPED_TRACE(NameOf(layout));
      const JobSpec job = On(model, layout);
      const RunRecord straight = RunSteps(job, {.last = 4});
      const TemporaryDirectory directory;
      RunSteps(job, {.last = 2, .save = directory.path()});
      const std::string saved = directory.Path(absl::StrFormat("step_%09d", 2));
      const RunRecord resumed = RunSteps(job, {.first = 3, .last = 4, .load = saved});
      EXPECT_EQ(resumed.losses,
                std::vector<double>(straight.losses.begin() + 2, straight.losses.end()));
      EXPECT_TRUE(resumed.state == straight.state) << "weights or moments differ";
      EXPECT_EQ(resumed.unequal_replicas, 0);
    }
  }
}

TEST(Bf16Test, AnotherLayoutLoadsEveryBitOfTheMasters) {
  for (const JobSpec& job : Bf16Jobs()) {
    const TemporaryDirectory directory;
    const RunRecord saved =
        RunSteps(On(job, {.tensor = 2, .data = 2}), {.last = 2, .save = directory.path()});
    const std::string checkpoint = directory.Path(absl::StrFormat("step_%09d", 2));
    for (const Layout& layout :
         {Layout{}, Layout{.data = 3}, Layout{.tensor = 4}, Layout{.pipeline = 2, .data = 2}}) {
      const RunRecord loaded =
          RunSteps(On(job, layout), {.first = 3, .last = 2, .load = checkpoint});
      EXPECT_TRUE(loaded.state == saved.state) << NameOf(layout);
      EXPECT_EQ(loaded.unequal_replicas, 0) << NameOf(layout);
    }
  }
}

// Every kind of parallelism, with as few ranks as show it.
std::vector<ParallelSpec> ParityLayouts() {
  std::vector<ParallelSpec> layouts;
  for (const Layout& layout :
       {Layout{.tensor = 2}, Layout{.tensor = 2, .pipeline = 2, .sequence_parallel = true},
        Layout{.pipeline = 2, .data = 2}, Layout{.context = 2}}) {
    layouts.push_back(SpecOf(layout));
  }
  return layouts;
}

TrainedRun TrainInBf16(const GoldenRun& golden, JobSpec job) {
  job.mutable_train()->set_precision(TrainSpec::BF16);
  return golden.Train(job);
}

// docs/performance.md has 200 steps of the quickstart.
TEST(Bf16Test, TwentyStepsLearnWithinOnePercentOfFloat32) {
  const RunSpan span = {.last = 20};
  const RunRecord wide = RunSteps(OnLayout(TinyJob(), {}), span);
  const RunRecord narrow = RunSteps(OnLayout(Bf16Job(), {.tensor = 2}), span);
  EXPECT_LT(wide.losses.back(), 0.95 * wide.losses.front());
  EXPECT_LE(LargestRelative(narrow.losses, wide.losses), 0.01);
  EXPECT_NE(narrow.losses.front(), wide.losses.front()) << "both have computed in float32";
}

class Bf16Parity : public ::testing::TestWithParam<std::string> {};

void ExpectWithin(const ExpectedRounding& rounding, double loss, double norm, double gradient) {
  EXPECT_LE(std::abs(loss - 1), rounding.loss);
  EXPECT_LE(std::abs(norm - 1), rounding.norm);
  EXPECT_LE(gradient, rounding.gradient);
}

// launch/expected_rounding.cc derives the bound from the number of roundings.
TEST_P(Bf16Parity, EveryLayoutIsWithinRoundingOfOneRankAndOfTheGoldenFile) {
  const GoldenRun golden(GetParam());
  const JobSpec alone_job = golden.Job(ParallelSpec(), 1, 1);
  const TrainedRun alone = TrainInBf16(golden, alone_job);
  JobSpec bf16_job = alone_job;
  bf16_job.mutable_train()->set_precision(TrainSpec::BF16);
  const ExpectedRounding rounding = ExpectedRoundingOf(bf16_job);
  ExpectWithin(rounding, alone.losses[0] / golden.golden().Doubles("train.loss")[0],
               alone.gradient_norms[0] / golden.golden().Doubles("train.grad_norm")[0],
               Compare(alone, golden.golden()).gradient);
  for (const ParallelSpec& parallel : ParityLayouts()) {
    const JobSpec job = golden.Job(parallel, 1, GridShape::From(parallel).ranks());
    SCOPED_TRACE(LayoutName(job));
    const TrainedRun run = TrainInBf16(golden, job);
    ExpectWithin(rounding, run.losses[0] / alone.losses[0],
                 run.gradient_norms[0] / alone.gradient_norms[0],
                 LargestOfTensor(run.gradients, alone.gradients, ""));
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Bf16Parity, ::testing::ValuesIn(DenseGoldenFiles()),
                         [](const auto& name) { return name.param; });

class Bf16Experts : public ::testing::TestWithParam<std::string> {
 protected:
  Bf16Experts() : golden_(GetParam()) {}

  // One micro-batch over all data ranks, which load balance is counted over.
  JobSpec Job(Layout layout) const {
    const ParallelSpec parallel = SpecOf(layout);
    const int64_t batch = golden_.golden().Integer("batch");
    JobSpec job = golden_.Job(parallel, batch / layout.data, GridShape::From(parallel).ranks());
    job.mutable_train()->set_precision(TrainSpec::BF16);
    return job;
  }

  const std::vector<Layout> layouts_ = {
      {.data = 2, .expert = 2},
      {.context = 2},
      {.tensor = 2, .sequence_parallel = true},
      {.tensor = 2, .pipeline = 2, .data = 2, .sequence_parallel = true, .expert = 2}};
  GoldenRun golden_;
};

// Every token takes every expert, so that no near-tie of two logits, which rounding decides, can
// send it elsewhere: what is left is rounding.
TEST_P(Bf16Experts, EveryLayoutIsWithinRoundingOfOneRank) {
  const auto train = [&](JobSpec job, TrainSpec::Precision precision) {
    job.mutable_model()->mutable_moe()->set_top_k(job.model().moe().experts());
    job.mutable_train()->set_precision(precision);
    return golden_.Train(job);
  };
  const auto expect_close = [](const TrainedRun& run, const TrainedRun& reference,
                               const ExpectedRounding& rounding) {
    ExpectWithin(rounding, run.losses[0] / reference.losses[0],
                 run.gradient_norms[0] / reference.gradient_norms[0],
                 LargestOfTensor(run.gradients, reference.gradients, ""));
  };
  const JobSpec alone_job = Job({});
  const ExpectedRounding rounding = ExpectedRoundingOf(alone_job);
  const TrainedRun alone = train(alone_job, TrainSpec::BF16);
  expect_close(alone, train(alone_job, TrainSpec::FP32), rounding);
  for (const Layout& layout : layouts_) {
    SCOPED_TRACE(NameOf(layout));
    expect_close(train(Job(layout), TrainSpec::BF16), alone, rounding);
  }
}

// With the file's top_k: the losses and the norm, to which one token is little.
TEST_P(Bf16Experts, LossAndNormAreWithinRoundingOfTheGoldenFile) {
  const double load_balance = golden_.golden().Scalar("load_balance"),
               router_z = golden_.golden().Scalar("router_z");
  for (const Layout& layout : layouts_) {
    SCOPED_TRACE(NameOf(layout));
    const JobSpec job = Job(layout);
    const ExpectedRounding rounding = ExpectedRoundingOf(job);
    const TrainedRun run = golden_.Train(job);
    ExpectWithin(rounding, run.losses[0] / golden_.golden().Doubles("train.loss")[0],
                 run.gradient_norms[0] / golden_.golden().Doubles("train.grad_norm")[0], 0);
    EXPECT_NEAR(run.first.load_balance / load_balance, 1, rounding.norm);
    EXPECT_NEAR(run.first.router_z / router_z, 1, rounding.norm);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Bf16Experts, ::testing::ValuesIn(MoeGoldenFiles()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace twinstream::testing
