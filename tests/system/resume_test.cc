// A run that stops, saves and goes on is the run that never stopped: bit for bit on the same
// layout, up to rounding on another one.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

constexpr int64_t kSaved = 3, kLast = 6;
// The project's promise for float32 on another layout. Of weights: in learning rates.
constexpr double kLossLimit = 1e-5, kMomentLimit = 1e-5, kWeightLimit = 1e-2, kLearningRate = 1e-2;

std::string StepDirectory(const TemporaryDirectory& directory) {
  return directory.Path(absl::StrFormat("step_%09d", kSaved));
}

// Shuffled data, moving learning rate, clipping and decay are TinyJob's.
struct Variant {
  std::string name;
  void (*change)(JobSpec& job);
};

const std::vector<Variant>& Variants() {
  static const std::vector<Variant> variants = {
      {"untied", [](JobSpec& /*job*/) {}},
      {"tied", [](JobSpec& job) { job.mutable_model()->set_tied_embeddings(true); }},
      {"tied, head norms, two key/value heads",
       [](JobSpec& job) {
         ModelSpec& model = *job.mutable_model();
         model.set_residual(ModelSpec::SIAMESE_POST_PRE);
         model.set_tied_embeddings(true);
         model.set_kv_heads(2);
         model.set_qk_norm(true);
       }},
  };
  return variants;
}

const std::vector<Layout>& Layouts() {
  static const std::vector<Layout> layouts = {
      {},
      {.data = 3},
      {.tensor = 2},
      {.pipeline = 2, .data = 2},
      {.tensor = 4, .sequence_parallel = true},
      {.tensor = 2, .pipeline = 2, .data = 2, .sequence_parallel = true},
      {.pipeline = 4},
      {.data = 4},
      {.tensor = 2, .context = 2},
      {.context = 2, .data = 2},
      {.pipeline = 2, .virtual_stages = 2, .schedule = ParallelSpec::INTERLEAVED},
  };
  return layouts;
}

// The short version gives each layout one of the variants.
bool Wanted(size_t variant, size_t layout) {
  return Exhaustive() || layout % Variants().size() == variant;
}

JobSpec JobOf(const Variant& variant) {
  JobSpec job = TinyJob();
  variant.change(job);
  return job;
}

std::vector<double> AfterSave(const std::vector<double>& all) {
  return {all.begin() + kSaved, all.end()};
}

// `resumed` is the second half of `straight`.
void ExpectSameBits(const RunRecord& resumed, const RunRecord& straight) {
  EXPECT_EQ(resumed.losses, AfterSave(straight.losses));
  EXPECT_EQ(resumed.gradient_norms, AfterSave(straight.gradient_norms));
  EXPECT_TRUE(resumed.state == straight.state) << "weights or moments differ";
}

TEST(ResumeTest, SixStepsEqualThreeAndThreeBitForBitOnTheSameLayout) {
  for (size_t v = 0; v < Variants().size(); ++v) {
    for (size_t l = 0; l < Layouts().size(); ++l) {
      if (!Wanted(v, l)) continue;
      const Variant& variant = Variants()[v];
      const Layout& layout = Layouts()[l];
      SCOPED_TRACE(absl::StrCat(variant.name, " on ", NameOf(layout)));
      const JobSpec job = OnLayout(JobOf(variant), layout);
      const RunRecord straight = RunSteps(job, {.last = kLast});
      const TemporaryDirectory directory;
      RunSteps(job, {.last = kSaved, .save = directory.path()});
      const RunSpan rest = {.first = kSaved + 1, .last = kLast, .load = StepDirectory(directory)};
      ExpectSameBits(RunSteps(job, rest), straight);
    }
  }
}

TEST(ResumeTest, MomentsOnEveryRankOrSharedOutAreTheSameCheckpoint) {
  const Layout layout = {.pipeline = 2, .data = 2};
  JobSpec job = TinyJob();
  const RunRecord straight = RunSteps(OnLayout(job, layout), {.last = kLast});
  for (bool sharded : {false, true}) {
    const TemporaryDirectory directory;
    job.mutable_parallel()->set_shard_optimizer(sharded);
    RunSteps(OnLayout(job, layout), {.last = kSaved, .save = directory.path()});
    job.mutable_parallel()->set_shard_optimizer(!sharded);
    const RunSpan rest = {.first = kSaved + 1, .last = kLast, .load = StepDirectory(directory)};
    ExpectSameBits(RunSteps(OnLayout(job, layout), rest), straight);
  }
}

// Saves on `from`, loads on `to`: not a bit of the state changes, the next losses are those of
// `straight`, one rank's run, and the next states those of one rank that goes on from there.
// (States of `straight` itself are not the measure: Adam's first update moves elements whose
// gradient is mostly rounding by up to a learning rate, with or without a checkpoint.)
void ExpectGoesOn(const JobSpec& job, const Layout& from, const Layout& to,
                  const RunRecord& straight) {
  SCOPED_TRACE(absl::StrCat(NameOf(from), " -> ", NameOf(to)));
  const TemporaryDirectory directory;
  const RunRecord saved = RunSteps(OnLayout(job, from), {.last = kSaved, .save = directory.path()});
  const std::string checkpoint = StepDirectory(directory);
  const RunRecord loaded =
      RunSteps(OnLayout(job, to), {.first = kSaved + 1, .last = kSaved, .load = checkpoint});
  EXPECT_TRUE(loaded.state == saved.state) << "loading has changed the state";
  EXPECT_EQ(loaded.unequal_replicas, 0);

  const RunSpan rest = {.first = kSaved + 1, .last = kLast, .load = checkpoint};
  const RunRecord alone = RunSteps(OnLayout(job, {}), rest);
  const RunRecord resumed = RunSteps(OnLayout(job, to), rest);
  EXPECT_LE(LargestRelative(resumed.losses, AfterSave(straight.losses)), kLossLimit);
  EXPECT_LE(LargestOfTensor(resumed.state, alone.state, "adam_m."), kMomentLimit);
  EXPECT_LE(LargestOfTensor(resumed.state, alone.state, "adam_v."), kMomentLimit);
  EXPECT_LE(LargestOfWeights(resumed.state, alone.state), kWeightLimit * kLearningRate);
  EXPECT_EQ(resumed.unequal_replicas, 0);
}

// Each layout once as writer and once as reader; all pairs in the exhaustive version.
TEST(ResumeTest, AnyLayoutGoesOnFromAnyLayout) {
  const std::vector<Layout>& layouts = Layouts();
  for (size_t v = 0; v < Variants().size(); ++v) {
    const Variant& variant = Variants()[v];
    SCOPED_TRACE(variant.name);
    const JobSpec job = JobOf(variant);
    const RunRecord straight = RunSteps(OnLayout(job, {}), {.last = kLast});
    for (size_t from = 0; from < layouts.size(); ++from) {
      for (size_t to = 0; to < layouts.size(); ++to) {
        const bool in_ring = to == (from + 3) % layouts.size() && Wanted(v, from);
        if (from != to && (in_ring || Exhaustive())) {
          ExpectGoesOn(job, layouts[from], layouts[to], straight);
        }
      }
    }
  }
}

// The learning rate is a function of job and step, nothing that a checkpoint could hold.
TEST(ResumeTest, AChangedOptimizerTakesEffect) {
  const TemporaryDirectory directory;
  JobSpec job = TinyJob();
  RunSteps(OnLayout(job, {}), {.last = kSaved, .save = directory.path()});
  const RunSpan span = {.first = kSaved + 1, .last = kLast, .load = StepDirectory(directory)};
  const RunRecord as_before = RunSteps(OnLayout(job, {}), span);

  job.mutable_optimizer()->set_peak_lr(0);
  const RunRecord still = RunSteps(OnLayout(job, {}), span);
  const RunRecord loaded =
      RunSteps(OnLayout(job, {}), {.first = kSaved + 1, .last = kSaved, .load = span.load});
  EXPECT_EQ(still.losses[0], as_before.losses[0]);
  EXPECT_EQ(LargestOfWeights(still.state, loaded.state), 0);
  EXPECT_GT(LargestOfWeights(as_before.state, loaded.state), 0);

  job.mutable_optimizer()->set_peak_lr(2e-2);
  EXPECT_GT(LargestOfWeights(RunSteps(OnLayout(job, {}), span).state, as_before.state), 1e-3);
}

}  // namespace
}  // namespace twinstream::testing
