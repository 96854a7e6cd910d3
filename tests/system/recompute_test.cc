// Recomputation changes memory and never a bit, whatever the scheme.
#include "gtest/gtest.h"
#include "parallel/thread_transport.h"
#include "tests/testing/golden_run.h"

namespace twinstream::testing {
namespace {

// Alone; with the sums of tensor parallelism around blocks; with sharded tokens and two stages;
// with keys and values of other ranks.
std::vector<ParallelSpec> Layouts() {
  std::vector<ParallelSpec> layouts(4);
  layouts[1].set_tensor(2);
  layouts[2].set_tensor(2);
  layouts[2].set_sequence_parallel(true);
  layouts[2].set_pipeline(2);
  layouts[3].set_context(2);
  return layouts;
}

class RecomputeTest : public ::testing::TestWithParam<std::string> {};

TEST_P(RecomputeTest, ChangesNoBit) {
  const GoldenRun golden(GetParam());
  for (ParallelSpec layout : Layouts()) {
    const auto train = [&](ParallelSpec::Recompute mode) {
      layout.set_recompute(mode);
      return golden.Train(
          golden.Job(layout, 1, layout.tensor() * layout.context() * layout.pipeline()));
    };
    const TrainedRun kept = train(ParallelSpec::NONE);
    for (ParallelSpec::Recompute mode : {ParallelSpec::SELECTIVE, ParallelSpec::FULL}) {
      const TrainedRun again = train(mode);
      const std::string name = layout.ShortDebugString();
      EXPECT_EQ(again.losses, kept.losses) << name;
      EXPECT_EQ(again.gradient_norms, kept.gradient_norms) << name;
      EXPECT_TRUE(again.gradients == kept.gradients) << name;
      EXPECT_TRUE(again.weights == kept.weights) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dense, RecomputeTest, ::testing::ValuesIn(DenseGoldenFiles()),
                         [](const ::testing::TestParamInfo<std::string>& file) {
                           return file.param;
                         });

INSTANTIATE_TEST_SUITE_P(Moe, RecomputeTest, ::testing::ValuesIn(MoeGoldenFiles()),
                         [](const ::testing::TestParamInfo<std::string>& file) {
                           return file.param;
                         });

// Bytes planned for activations; scratch included, because what is computed again goes there.
int64_t PlannedActivations(const JobSpec& job) {
  const std::unique_ptr<Device> device = *MakeDevice("cpu");
  ThreadHub hub(1);
  ThreadTransport transport(hub, 0);
  const Trainer trainer(job, Purpose::kTraining, 1, *device, transport);
  return trainer.memory().activations + trainer.memory().scratch;
}

TEST(RecomputeMemory, EachModePlansForLess) {
  JobSpec job = GoldenRun("lm_siamese_hybrid_pre").Job({}, 4, 1);
  job.mutable_model()->set_layers(8);
  const auto planned = [&](ParallelSpec::Recompute mode) {
    job.mutable_parallel()->set_recompute(mode);
    return PlannedActivations(job);
  };
  const int64_t none = planned(ParallelSpec::NONE);
  const int64_t selective = planned(ParallelSpec::SELECTIVE);
  const int64_t full = planned(ParallelSpec::FULL);
  EXPECT_LT(selective, 3 * none / 4);
  EXPECT_LT(full, selective / 2);
}

// The shape S of the benchmarks: in narrow models the scales of the norms count for more.
TEST(ActivationMemory, TwoStreamsKeepWhatOneDoes) {
  JobSpec job = GoldenRun("lm_siamese_hybrid_pre").Job({}, 4, 1);
  ModelSpec& model = *job.mutable_model();
  model.set_layers(8);
  model.set_hidden(256);
  model.set_heads(4);
  model.set_kv_heads(4);
  model.set_head_dim(64);
  model.set_ffn(688);
  const auto planned = [&](ModelSpec::Residual scheme) {
    model.set_residual(scheme);
    return PlannedActivations(job);
  };
  const int64_t one = planned(ModelSpec::PRE_NORM);
  EXPECT_LT(planned(ModelSpec::SIAMESE_HYBRID_PRE), one + one / 20);
  EXPECT_LT(planned(ModelSpec::SIAMESE_POST_PRE), one + one / 20);
}

}  // namespace
}  // namespace twinstream::testing
