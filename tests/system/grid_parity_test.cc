// What layouts must not change: nothing at all where the order of sums stays, rounding elsewhere.
// Replicas stay the same bits on every layout.
#include <algorithm>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "parallel/schedule.h"
#include "tests/testing/run_checks.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

JobSpec BatchOf30() {
  JobSpec job = TinyJob();
  job.mutable_train()->set_global_batch(30);
  return job;
}

// What the schedule's check promises: of the rank that holds most.
int MicroBatchesHeld(const Layout& layout, int micro_batches) {
  const PipelineShape shape = {
      .ranks = layout.pipeline, .chunks = layout.virtual_stages, .micro_batches = micro_batches};
  const ScheduleReport report =
      *CheckSchedule(LowerSchedule(GenerateSchedule(layout.schedule, shape), shape), shape);
  return *std::max_element(report.peak_slots.begin(), report.peak_slots.end());
}

TEST(GridParityTest, PipelineSizeAndScheduleDoNotChangeABit) {
  for (ModelSpec::Residual residual : {ModelSpec::SIAMESE_HYBRID_PRE, ModelSpec::POST_NORM}) {
    for (int data : {1, 3}) {
      JobSpec job = TinyJob();
      job.mutable_model()->set_residual(residual);
      const RunSpan span = {.last = 4};
      const RunRecord reference = RunSteps(OnLayout(job, {.data = data}), span);
      for (int pipeline : {1, 2, 3, 4}) {
        for (Layout layout : Pipelines(pipeline, 4)) {
          layout.data = data;
          SCOPED_TRACE(NameOf(layout));
          const RunRecord run = RunSteps(OnLayout(job, layout), span);
          ExpectSameBits(run, reference);
          EXPECT_EQ(run.micro_batches_held, MicroBatchesHeld(layout, 12 / data));
        }
      }
    }
  }
}

// Up to four chunks per rank; a batch that the ranks do not divide; a tied embedding, whose two
// stages are complete at different times; the streams sharded over tensor ranks.
TEST(GridParityTest, SchedulesGiveTheSameBitsWithEveryOtherOption) {
  for (bool tied : {false, true}) {
    JobSpec job = TinyJob();
    job.mutable_model()->set_layers(8);
    job.mutable_model()->set_tied_embeddings(tied);
    job.mutable_train()->set_global_batch(10);
    const RunSpan span = {.last = 2};
    std::vector<Layout> bases = {{.tensor = 2, .sequence_parallel = true}};
    if (tied) bases = {{}, {.data = 2}};
    for (const Layout& base : bases) {
      const RunRecord reference = RunSteps(OnLayout(job, base), span);
      for (int pipeline : Exhaustive() ? std::vector<int>{2, 3, 4} : std::vector<int>{2, 4}) {
        std::optional<RunRecord> first;
        for (Layout layout : Pipelines(pipeline, 8)) {
          layout.tensor = base.tensor;
          layout.data = base.data;
          layout.sequence_parallel = base.sequence_parallel;
          SCOPED_TRACE(absl::StrCat(NameOf(layout), " tied ", tied));
          const RunRecord run = RunSteps(OnLayout(job, layout), span);
          // Two stages sum a tied gradient in two parts.
          if (tied) {
            ExpectWithinRounding(run, reference);
            if (!first) first = run;
            ExpectSameBits(run, *first);
          } else {
            ExpectSameBits(run, reference);
          }
        }
      }
    }
  }
}

TEST(GridParityTest, RecomputationInChunksDoesNotChangeABit) {
  JobSpec job = TinyJob();
  const Layout layout = {.pipeline = 2, .virtual_stages = 2, .schedule = ParallelSpec::INTERLEAVED};
  const RunRecord kept = RunSteps(OnLayout(job, layout), {.last = 2});
  for (auto recompute : {ParallelSpec::SELECTIVE, ParallelSpec::FULL}) {
    job.mutable_parallel()->set_recompute(recompute);
    ExpectSameBits(RunSteps(OnLayout(job, layout), {.last = 2}), kept);
  }
}

TEST(GridParityTest, ShardingTheOptimizerDoesNotChangeABit) {
  for (const Layout& layout : {Layout{.data = 3}, Layout{.data = 5}, Layout{.tensor = 2, .data = 2},
                               Layout{.pipeline = 2, .data = 2}}) {
    SCOPED_TRACE(NameOf(layout));
    JobSpec job = BatchOf30();
    if (layout.data == 2) job = TinyJob();
    job.mutable_parallel()->set_shard_optimizer(false);
    const RunRecord whole = RunSteps(OnLayout(job, layout), {.last = 4});
    job.mutable_parallel()->set_shard_optimizer(true);
    ExpectSameBits(RunSteps(OnLayout(job, layout), {.last = 4}), whole);
  }
}

// Data sizes that neither divide a power of two nor the rows of the tensors; every micro-batch that
// the batch allows; tied and untied.
TEST(GridParityTest, OddDataSizesGiveOneRanksRun) {
  for (bool tied : {false, true}) {
    JobSpec job = BatchOf30();
    job.mutable_model()->set_tied_embeddings(tied);
    const RunSpan span = {.last = 3};
    const RunRecord reference = RunSteps(OnLayout(job, {}), span);
    for (const Layout& layout :
         {Layout{.data = 3}, Layout{.data = 5}, Layout{.pipeline = 2, .data = 3},
          Layout{.tensor = 2, .data = 3, .sequence_parallel = true}}) {
      for (int64_t microbatch :
           Exhaustive() ? std::vector<int64_t>{1, 2, 5, 6, 10} : std::vector<int64_t>{1, 2}) {
        if (30 % (layout.data * microbatch) != 0) continue;
        SCOPED_TRACE(absl::StrCat(NameOf(layout), " microbatch ", microbatch, " tied ", tied));
        job.mutable_train()->set_microbatch(microbatch);
        ExpectWithinRounding(RunSteps(OnLayout(job, layout), span), reference);
      }
    }
  }
}

// Elements of all weights and moments, over all ranks.
size_t Elements(const RunRecord& run) {
  size_t elements = 0;
  for (const auto& [name, values] : run.state) elements += values.size();
  return elements;
}

// Sequences over context ranks, alone and with every other axis; odd numbers of ranks, and blocks
// of one token.
TEST(GridParityTest, ContextRanksGiveOneRanksRun) {
  JobSpec job = TinyJob();
  ModelSpec& model = *job.mutable_model();
  model.set_layers(2);
  model.set_sequence(12);
  model.set_kv_heads(2);
  model.set_qk_norm(true);
  model.set_tied_embeddings(true);
  job.mutable_train()->set_microbatch(3);
  const RunSpan span = {.last = 3};
  const RunRecord reference = RunSteps(OnLayout(job, {}), span);
  for (const Layout& layout : {Layout{.context = 2},
                               {.context = 3},
                               {.context = 6},
                               {.tensor = 2, .context = 2, .sequence_parallel = true},
                               {.tensor = 4, .context = 2},
                               {.context = 2, .pipeline = 2},
                               {.context = 3, .data = 2},
                               {.tensor = 2, .context = 2, .pipeline = 2}}) {
    SCOPED_TRACE(NameOf(layout));
    const RunRecord run = RunSteps(OnLayout(job, layout), span);
    ExpectWithinRounding(run, reference);
    EXPECT_GT(run.replicas, 0);
    EXPECT_EQ(Elements(run), Elements(reference));
  }
}

TEST(GridParityTest, PipelineSizeDoesNotChangeABitOfContextRanks) {
  const RunSpan span = {.last = 2};
  const RunRecord reference = RunSteps(OnLayout(TinyJob(), {.context = 2}), span);
  for (int pipeline : {2, 4}) {
    ExpectSameBits(RunSteps(OnLayout(TinyJob(), {.context = 2, .pipeline = pipeline}), span),
                   reference);
  }
}

struct OddShape {
  std::string name;
  std::vector<Layout> layouts;
  void (*change)(ModelSpec& model);
};

void PrintTo(const OddShape& shape, std::ostream* out) { *out << shape.name; }

class OddShapeTest : public ::testing::TestWithParam<OddShape> {};

TEST_P(OddShapeTest, EqualsOneRank) {
  JobSpec job = TinyJob();
  GetParam().change(*job.mutable_model());
  const RunSpan span = {.last = 3};
  const RunRecord reference = RunSteps(OnLayout(job, {}), span);
  for (const Layout& layout : GetParam().layouts) {
    SCOPED_TRACE(NameOf(layout));
    const RunRecord run = RunSteps(OnLayout(job, layout), span);
    ExpectWithinRounding(run, reference);
    EXPECT_EQ(Elements(run), Elements(reference));
  }
}

const Layout kTensor2 = {.tensor = 2}, kTensor4 = {.tensor = 4};
const Layout kTensor4Sharded = {.tensor = 4, .sequence_parallel = true};
const Layout kPipeline2 = {.pipeline = 2}, kPipeline3 = {.pipeline = 3},
             kPipeline4 = {.pipeline = 4}, kPipeline5 = {.pipeline = 5};

INSTANTIATE_TEST_SUITE_P(
    Dense, OddShapeTest,
    ::testing::Values(OddShape{"PrimeVocabulary",
                               {kTensor2, kTensor4, kTensor4Sharded},
                               [](ModelSpec& model) { model.set_vocabulary(67); }},
                      OddShape{"PrimeVocabularyTied",
                               {kTensor2, kTensor4, {.tensor = 2, .pipeline = 2}},
                               [](ModelSpec& model) { model.set_tied_embeddings(true); }},
                      OddShape{"FeedForwardThatTensorDoesNotDivide",
                               {kTensor2, kTensor4, kTensor4Sharded},
                               [](ModelSpec& model) { model.set_ffn(43); }},
                      OddShape{"TwoKeyValueHeadsOnFourRanks",
                               {kTensor4, kTensor4Sharded, {.tensor = 4, .data = 2}},
                               [](ModelSpec& model) { model.set_kv_heads(2); }},
                      OddShape{"OneKeyValueHeadOnFourRanksWithHeadNorms",
                               {kTensor2, kTensor4, {.tensor = 4, .pipeline = 2}},
                               [](ModelSpec& model) {
                                 model.set_kv_heads(1);
                                 model.set_qk_norm(true);
                               }},
                      OddShape{"AsManyStagesAsLayers", {kPipeline4}, [](ModelSpec& /*model*/) {}},
                      OddShape{"FiveLayers",
                               {kPipeline2, kPipeline3, kPipeline4, kPipeline5},
                               [](ModelSpec& model) { model.set_layers(5); }}),
    [](const ::testing::TestParamInfo<OddShape>& shape) { return shape.param.name; });

TEST(GridParityTest, ReplicasAreTheSameBitsAfterTwentySteps) {
  std::vector<Layout> layouts = {
      {.pipeline = 2, .data = 2},
      {.tensor = 4, .sequence_parallel = true},
      {.tensor = 2, .pipeline = 2, .data = 2},
      {.pipeline = 2, .data = 2, .virtual_stages = 2, .schedule = ParallelSpec::INTERLEAVED}};
  if (Exhaustive()) {
    layouts.push_back({.tensor = 4, .data = 2});
    layouts.push_back({.tensor = 2, .pipeline = 4});
    layouts.push_back({.pipeline = 4, .data = 3});
  }
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(NameOf(layout));
    JobSpec job = TinyJob();
    job.mutable_model()->set_tied_embeddings(true);
    job.mutable_model()->set_kv_heads(2);
    job.mutable_model()->set_qk_norm(true);
    const RunRecord run = RunSteps(OnLayout(job, layout), {.last = 20});
    EXPECT_GT(run.replicas, 0);
    EXPECT_EQ(run.unequal_replicas, 0);
    EXPECT_LT(run.losses.back(), run.losses.front());
  }
}

}  // namespace
}  // namespace twinstream::testing
