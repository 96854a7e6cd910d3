// What runs beside the computation changes when things happen and not one bit of what comes out.
#include "gtest/gtest.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

constexpr int64_t kUpdates = 3;

// The options that decide what is exchanged, and when.
struct Options {
  bool shard, tied;
  ParallelSpec::Recompute recompute;
  ParallelSpec::Schedule schedule;
};

std::vector<Options> AllOptions() {
  std::vector<Options> all;
  for (bool shard : {false, true}) {
    for (bool tied : {false, true}) {
      for (auto recompute : {ParallelSpec::NONE, ParallelSpec::SELECTIVE, ParallelSpec::FULL}) {
        for (auto schedule : {ParallelSpec::GPIPE, ParallelSpec::ONE_F_ONE_B}) {
          all.push_back({shard, tied, recompute, schedule});
        }
      }
    }
  }
  return all;
}

JobSpec JobWith(const Options& options) {
  JobSpec job = TinyJob();
  job.mutable_model()->set_tied_embeddings(options.tied);
  job.mutable_parallel()->set_shard_optimizer(options.shard);
  job.mutable_parallel()->set_recompute(options.recompute);
  job.mutable_parallel()->set_schedule(options.schedule);
  return job;
}

void ExpectSameBits(const JobSpec& job) {
  const RunRecord off = RunSteps(job, {.last = kUpdates, .execution = {.overlap = Overlap::kOff}});
  const RunRecord on = RunSteps(job, {.last = kUpdates, .execution = {.overlap = Overlap::kOn}});
  SCOPED_TRACE(job.parallel().ShortDebugString());
  EXPECT_EQ(on.losses, off.losses);
  EXPECT_EQ(on.gradient_norms, off.gradient_norms);
  // Weights and moments; the first moment is a fixed mean of the gradients.
  EXPECT_EQ(on.state, off.state);
  EXPECT_EQ(on.unequal_replicas, 0);
}

TEST(Overlap, ChangesNoBitOfLossesGradientsAndWeightsOnAnyLayout) {
  const std::vector<Options> all = AllOptions();
  const Layout layouts[] = {{.data = 2},
                            {.data = 3},
                            {.pipeline = 2},
                            {.tensor = 2, .data = 2, .sequence_parallel = true},
                            {.tensor = 2, .pipeline = 2},
                            {.context = 2, .data = 2},
                            {.pipeline = 2, .data = 2},
                            {.tensor = 2, .pipeline = 2, .data = 2}};
  // A stride that has no divisor in common with the number of options: all of them meet the layouts
  // in turn.
  const size_t stride = Exhaustive() ? 1 : 7;
  size_t next = 0;
  for (const Layout& layout : layouts) {
    for (; next < all.size(); next += stride) ExpectSameBits(OnLayout(JobWith(all[next]), layout));
    next -= all.size();
  }
}

}  // namespace
}  // namespace twinstream::testing
