// Mixtures of experts with several micro-batches a step, without tokens for some ranks, over
// checkpoints, and in the shape of the 15 B job.
#include <google/protobuf/descriptor.h>

#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "launch/trainer.h"
#include "proto/job_rules.h"
#include "proto/job_spec.h"
#include "tests/testing/golden.h"
#include "tests/testing/run_checks.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

constexpr int64_t kLayers = 2, kExperts = 12, kTopK = 3, kTokens = int64_t{12} * 16;

// Two of TinyJob's layers; its 12 sequences in micro-batches of `together` over all data ranks.
JobSpec MoeJob(const Layout& layout, int64_t together) {
  JobSpec job = TinyJob();
  job.mutable_model()->set_layers(kLayers);
  job.mutable_model()->mutable_moe()->set_experts(kExperts);
  job.mutable_model()->mutable_moe()->set_top_k(kTopK);
  job.mutable_train()->set_microbatch(together / layout.data);
  return OnLayout(job, layout);
}

TEST(MoeRunTest, LayoutsEqualOneRankThatAccumulatesTheSameMicroBatches) {
  const RunSpan span = {.last = 2};
  for (int64_t together : {4, 6}) {
    const RunRecord reference = RunSteps(MoeJob({}, together), span);
    for (const Layout& layout :
         {Layout{.tensor = 2}, Layout{.tensor = 4, .sequence_parallel = true}, Layout{.data = 2},
          Layout{.data = 2, .expert = 2}, Layout{.data = 4, .expert = 2},
          Layout{.data = 4, .expert = 4}, Layout{.data = 6, .expert = 3},
          Layout{.context = 2, .data = 2, .expert = 2},
          Layout{.pipeline = 2, .data = 2, .expert = 2},
          Layout{.tensor = 2, .data = 2, .expert = 2},
          Layout{.tensor = 2, .data = 2, .sequence_parallel = true, .expert = 2},
          Layout{.tensor = 2, .pipeline = 2, .data = 2, .sequence_parallel = true, .expert = 2}}) {
      if (together % layout.data != 0) continue;
      SCOPED_TRACE(absl::StrCat(NameOf(layout), ", ", together, " sequences at a time"));
      ExpectWithinRounding(RunSteps(MoeJob(layout, together), span), reference);
    }
  }
}

TEST(MoeRunTest, EverySchemeTakesExperts) {
  const google::protobuf::EnumDescriptor& type = *ModelSpec::Residual_descriptor();
  for (int i = 0; i < type.value_count(); ++i) {
    SCOPED_TRACE(type.value(i)->name());
    const auto on = [&](const Layout& layout) {
      JobSpec job = MoeJob(layout, 6);
      job.mutable_model()->set_residual(static_cast<ModelSpec::Residual>(type.value(i)->number()));
      return RunSteps(job, {.last = 2});
    };
    ExpectWithinRounding(on({.tensor = 2, .data = 2, .sequence_parallel = true, .expert = 2}),
                         on({}));
  }
}

TEST(MoeRunTest, NoTokenIsDropped) {
  for (const Layout& layout : {Layout{}, Layout{.tensor = 2, .data = 2, .expert = 2},
                               Layout{.pipeline = 2, .data = 4, .expert = 4}}) {
    const RunRecord run = RunSteps(MoeJob(layout, 4), {.last = 1});
    ASSERT_EQ(run.expert_tokens.size(), kExperts);
    EXPECT_EQ(std::accumulate(run.expert_tokens.begin(), run.expert_tokens.end(), int64_t{0}),
              kTokens * kTopK * kLayers);
    EXPECT_GE(run.expert_imbalance, 1);
    EXPECT_LE(run.expert_imbalance, static_cast<double>(kExperts) / kTopK);
  }
}

TEST(MoeRunTest, PipelineAndScheduleDoNotChangeABit) {
  for (const Layout& layout : {Layout{}, Layout{.data = 2, .expert = 2}}) {
    const RunSpan span = {.last = 2};
    const RunRecord reference = RunSteps(MoeJob(layout, 2), span);
    for (Layout on : Pipelines(2, kLayers)) {
      on.data = layout.data;
      on.expert = layout.expert;
      SCOPED_TRACE(NameOf(on));
      ExpectSameBits(RunSteps(MoeJob(on, 2), span), reference);
    }
  }
}

TEST(MoeRunTest, RecomputationDoesNotChangeABit) {
  for (const Layout& layout : {Layout{.pipeline = 2, .data = 4, .expert = 4},
                               Layout{.tensor = 2, .data = 2, .expert = 2}}) {
    SCOPED_TRACE(NameOf(layout));
    JobSpec job = MoeJob(layout, 4);
    const RunRecord kept = RunSteps(job, {.last = 2});
    for (auto mode : {ParallelSpec::SELECTIVE, ParallelSpec::FULL}) {
      job.mutable_parallel()->set_recompute(mode);
      ExpectSameBits(RunSteps(job, {.last = 2}), kept);
    }
  }
}

TEST(MoeRunTest, ShardingTheOptimizerDoesNotChangeABit) {
  for (const Layout& layout : {Layout{.data = 4, .expert = 2},
                               Layout{.tensor = 2, .data = 2, .expert = 2}, Layout{.data = 4}}) {
    SCOPED_TRACE(NameOf(layout));
    JobSpec job = MoeJob(layout, 4);
    const RunRecord sharded = RunSteps(job, {.last = 2});
    job.mutable_parallel()->set_shard_optimizer(false);
    ExpectSameBits(RunSteps(job, {.last = 2}), sharded);
  }
}

// Every layout as writer and as reader; each state is whole, and the same after loading.
TEST(MoeRunTest, CheckpointsHoldEachExpertOnceAndLoadOnAnyLayout) {
  const std::vector<Layout> layouts = {{},
                                       {.data = 4, .expert = 4},
                                       {.tensor = 2, .data = 2, .expert = 2},
                                       {.data = 4, .expert = 2},
                                       {.tensor = 4, .sequence_parallel = true},
                                       {.pipeline = 2, .data = 2, .expert = 2}};
  const RunRecord straight = RunSteps(MoeJob({}, 4), {.last = 4});
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Layout &from = layouts[i], &to = layouts[(i + 1) % layouts.size()];
    SCOPED_TRACE(absl::StrCat(NameOf(from), " -> ", NameOf(to)));
    const TemporaryDirectory directory;
    const RunRecord saved = RunSteps(MoeJob(from, 4), {.last = 2, .save = directory.path()});
    const std::string load = directory.Path(absl::StrFormat("step_%09d", 2));
    const RunRecord loaded = RunSteps(MoeJob(to, 4), {.first = 3, .last = 2, .load = load});
    EXPECT_TRUE(loaded.state == saved.state) << "loading has changed the state";
    const RunSpan rest = {.first = 3, .last = 4, .load = load};
    const RunRecord resumed = RunSteps(MoeJob(to, 4), rest);
    EXPECT_LE(LargestRelative(resumed.losses, {straight.losses.begin() + 2, straight.losses.end()}),
              kLossLimit);
    EXPECT_EQ(resumed.unequal_replicas, 0);
  }
}

TEST(MoeRunTest, FourStepsEqualTwoAndTwoBitForBit) {
  for (const Layout& layout :
       {Layout{.data = 4, .expert = 2}, Layout{.tensor = 2, .data = 2, .expert = 2}}) {
    SCOPED_TRACE(NameOf(layout));
    const JobSpec job = MoeJob(layout, 4);
    const TemporaryDirectory directory;
    RunSteps(job, {.last = 2, .save = directory.path()});
    const std::string load = directory.Path(absl::StrFormat("step_%09d", 2));
    EXPECT_TRUE(RunSteps(job, {.first = 3, .last = 4, .load = load}).state ==
                RunSteps(job, {.last = 4}).state);
  }
}

struct FirstUpdate {
  StepResult result;
  WholeTensors gradients;
  std::vector<int64_t> expert_tokens;
};

// kZero: every logit is equal, so that every token takes the first experts and all others get none.
enum class Routers { kInitial, kZero };

// Over a batch whose sequences repeat after `sequences`.
FirstUpdate UpdateOnce(const JobSpec& job, Routers routers, int64_t sequences) {
  FirstUpdate update;
  std::mutex mutex;
  RunRanks(GridShape::From(job.parallel()).ranks(), [&](Transport& transport) {
    const std::unique_ptr<Device> device = *MakeDevice("cpu");
    Trainer trainer(job, Purpose::kTraining, AccumulationSteps(job), *device, transport);
    trainer.Materialize();
    trainer.InitializeWeights();
    for (const Piece& piece : trainer.parameters().ValuePieces()) {
      const bool router = absl::EndsWith(piece.name, "router.weight");
      if (router && routers == Routers::kZero) device->ops().Zero(piece.data);
    }
    HostBatch& batch = trainer.batch();
    const BatchShape shape = trainer.batch_shape();
    const int64_t T = job.model().sequence(), V = job.model().vocabulary();
    for (int64_t i = 0; i < static_cast<int64_t>(batch.tokens.size()); ++i) {
      const int64_t row = i / T, m = row / shape.microbatch, b = row % shape.microbatch;
      const int64_t sample = (m * shape.data_ranks + shape.data_rank) * shape.microbatch + b;
      const int64_t token = sample % sequences * T + i % T;
      batch.tokens[static_cast<size_t>(i)] = static_cast<int32_t>(token * token % V);
      batch.targets[static_cast<size_t>(i)] = static_cast<int32_t>(token * 7 % V);
    }
    const StepResult result = trainer.Step(1, 0, false);
    const std::lock_guard<std::mutex> lock(mutex);
    Collect(trainer.optimizer().GradientPieces(), *device, &update.gradients);
    update.result = result;
    update.expert_tokens = {trainer.expert_tokens().begin(), trainer.expert_tokens().end()};
  });
  return update;
}

TEST(MoeRunTest, RanksAndExpertsWithoutTokensTakePart) {
  const FirstUpdate alone = UpdateOnce(MoeJob({}, 4), Routers::kZero, 12);
  for (int64_t e = 0; e < kExperts; ++e) {
    EXPECT_EQ(alone.expert_tokens[static_cast<size_t>(e)], e < kTopK ? kTokens * kLayers : 0);
  }
  EXPECT_DOUBLE_EQ(alone.result.expert_imbalance, static_cast<double>(kExperts) / kTopK);
  for (const Layout& layout :
       {Layout{.data = 4, .expert = 4}, Layout{.tensor = 2, .data = 2, .expert = 2},
        Layout{.pipeline = 2, .data = 2, .expert = 2}}) {
    SCOPED_TRACE(NameOf(layout));
    const FirstUpdate update = UpdateOnce(MoeJob(layout, 4), Routers::kZero, 12);
    EXPECT_EQ(update.expert_tokens, alone.expert_tokens);
    EXPECT_NEAR(update.result.loss / alone.result.loss, 1, kLossLimit);
    EXPECT_NEAR(update.result.gradient_norm / alone.result.gradient_norm, 1, kNormLimit);
    EXPECT_LE(LargestOfTensor(update.gradients, alone.gradients, ""), kGradientLimit);
  }
}

// Three equal micro-batches have the loss, and the gradients, of one: auxiliary losses are
// averages.
TEST(MoeRunTest, EqualMicroBatchesEqualOneOfThem) {
  for (const Layout& layout : {Layout{}, Layout{.tensor = 2, .data = 2, .expert = 2}}) {
    JobSpec three = MoeJob(layout, 4);
    three.mutable_model()->mutable_moe()->set_load_balance(1);
    three.mutable_model()->mutable_moe()->set_router_z(0.1);
    JobSpec one = three;
    one.mutable_train()->set_global_batch(4);
    const FirstUpdate expected = UpdateOnce(one, Routers::kInitial, 4),
                      update = UpdateOnce(three, Routers::kInitial, 4);
    EXPECT_NEAR(update.result.loss / expected.result.loss, 1, kLossLimit);
    EXPECT_NEAR(update.result.load_balance / expected.result.load_balance, 1, kLossLimit);
    EXPECT_NEAR(update.result.router_z / expected.result.router_z, 1, kLossLimit);
    EXPECT_LE(LargestOfTensor(update.gradients, expected.gradients, ""), kGradientLimit);
  }
}

// 64 experts of which 8, four stages, eight ranks to an expert group in the job; here all sizes are
// smaller and the 8 ranks are 2 stages of 4 data ranks.
TEST(MoeRunTest, TheJobOf15BillionParametersIsValidAndASmallOneOfItsShapeTrains) {
  const absl::StatusOr<JobSpec> job =
      LoadJobSpec(GoldenDirectory() + "/../../deploy/jobs/siamese_15b_a2b_moe.textproto", {});
  ASSERT_TRUE(job.ok()) << job.status();
  for (int ranks : {32, 64, 256}) EXPECT_TRUE(JobProblems(*job, ranks).empty()) << ranks;

  JobSpec small = *job;
  small.clear_parallel();
  ModelSpec& model = *small.mutable_model();
  model.set_layers(2);
  model.set_hidden(32);
  model.set_heads(4);
  model.set_ffn(20);
  model.set_vocabulary(67);
  model.set_sequence(16);
  small.mutable_optimizer()->set_peak_lr(1e-2);
  small.mutable_optimizer()->set_warmup_steps(2);
  small.mutable_train()->set_steps(20);
  small.mutable_train()->set_global_batch(8);
  const RunRecord run =
      RunSteps(OnLayout(small, {.pipeline = 2, .data = 4, .expert = 4}), {.last = 20});
  EXPECT_LT(run.losses.back(), run.losses.front() - 0.2);
  EXPECT_EQ(run.unequal_replicas, 0);
  EXPECT_EQ(run.expert_tokens.size(), 64u);
}

}  // namespace
}  // namespace twinstream::testing
