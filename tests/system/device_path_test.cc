// However a model's tensors get from rank to rank, through memory of the host, staged by way of it
// or by a network of devices, with or without overlap: not one bit of what comes out changes. And
// the network has the groups that the layout uses, no more.
#include <numeric>

#include "gtest/gtest.h"
#include "launch/trainer.h"
#include "tests/testing/run_checks.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

constexpr int64_t kUpdates = 3;

void ExpectSameRun(const RunRecord& run, const RunRecord& on_host) {
  ExpectSameBits(run, on_host);
  EXPECT_EQ(run.replicas, on_host.replicas);
}

// network_groups: over all ranks, a group counted once.
void ExpectSameBitsOnEveryPath(const JobSpec& job, int network_groups) {
  SCOPED_TRACE(job.parallel().ShortDebugString());
  const RunRecord on_host = RunSteps(job, {.last = kUpdates});
  for (Overlap overlap : {Overlap::kOff, Overlap::kOn}) {
    ExpectSameRun(RunSteps(job, {.last = kUpdates,
                                 .execution = {.overlap = overlap},
                                 .make_device = RemoteCpuDevices(nullptr)}),
                  on_host);
    ThreadNetworkHub hub;
    ExpectSameRun(RunSteps(job, {.last = kUpdates,
                                 .execution = {.overlap = overlap},
                                 .make_device = RemoteCpuDevices(&hub)}),
                  on_host);
    EXPECT_EQ(hub.groups(), network_groups);
    const bool rounds = job.train().precision() == TrainSpec::BF16;
    const int replicas = job.parallel().context() * job.parallel().data();
    EXPECT_EQ(hub.groups(GroupWork::kRoundedSums),
              rounds && replicas > 1 ? job.parallel().tensor() * job.parallel().pipeline() : 0);
  }
}

struct LayoutCase {
  Layout layout;
  // The sum over all groups of the layout: posted sums over tensor ranks, replicas; the main
  // thread's sums over tensor ranks, routes between stages and round the ring.
  int network_groups;
  int pipelines;  // of several ranks; tied embeddings add a route each way to each
};

TEST(DevicePath, ChangesNoBitOnAnyLayoutAndJoinsOnlyWhatIsUsed) {
  const LayoutCase cases[] = {
      {{.data = 3}, 1, 0},
      {{.pipeline = 4}, 3 * 2, 1},
      {{.tensor = 2, .sequence_parallel = true}, 1 + 1, 0},
      {{.context = 4}, 1 + 4 * 2, 0},
      {{.tensor = 2, .pipeline = 2, .data = 2}, 4 + 4 + 4 + 4 * 2, 4},
      {{.tensor = 2, .context = 2, .pipeline = 2, .data = 2}, 8 + 4 + 8 + 8 * 2 + 8 * 4, 8},
      {{.pipeline = 2, .virtual_stages = 2, .schedule = ParallelSpec::INTERLEAVED}, 2 * 2, 1},
      {{.pipeline = 2, .data = 2, .schedule = ParallelSpec::ZERO_BUBBLE}, 2 + 2 * 2, 2}};
  for (const LayoutCase& each : cases) {
    for (bool tied : {false, true}) {
      JobSpec job = TinyJob();
      job.mutable_train()->set_precision(tied ? TrainSpec::BF16 : TrainSpec::FP32);
      job.mutable_model()->set_tied_embeddings(tied);
      job.mutable_parallel()->set_shard_optimizer(tied);
      ExpectSameBitsOnEveryPath(OnLayout(job, each.layout),
                                each.network_groups + (tied ? 2 * each.pipelines : 0));
    }
  }
}

// The replicas, who sum the router's statistics, are those who exchange tokens: one group.
TEST(DevicePath, ChangesNoBitOfMixturesOfExperts) {
  JobSpec job = TinyJob();
  job.mutable_model()->mutable_moe()->set_experts(4);
  job.mutable_model()->mutable_moe()->set_top_k(2);
  ExpectSameBitsOnEveryPath(OnLayout(job, {.tensor = 2, .data = 2, .expert = 2}), 2 * 2 + 2 * 2);
  ExpectSameBitsOnEveryPath(OnLayout(job, {.pipeline = 2, .data = 2, .expert = 2}), 2 + 2 + 2 * 2);
  // Experts and their replicas in groups of their own, and the ring's ranks among both.
  ExpectSameBitsOnEveryPath(OnLayout(job, {.context = 2, .data = 2, .expert = 2}),
                            1 + 2 + 2 * 4 + 1 + 2);
  ExpectSameBitsOnEveryPath(OnLayout(job, {.context = 2}), 1 + 4 + 1);
}

// The logits of rank 0 after a few tokens.
std::vector<float> Logits(const JobSpec& job, const DeviceMaker& make_device) {
  std::vector<float> logits;
  RunRanks(GridShape::From(job.parallel()).ranks(), [&](Transport& transport) {
    const std::unique_ptr<Device> device = make_device(transport.rank());
    Trainer trainer(job, Purpose::kInference, 1, *device, transport);
    trainer.Materialize();
    trainer.InitializeWeights();
    std::vector<int32_t> tokens(static_cast<size_t>(job.model().sequence()));
    std::iota(tokens.begin(), tokens.end(), 3);
    const std::vector<float> own = trainer.NextTokenLogits(tokens, 5);
    if (transport.rank() == 0) logits = own;
  });
  return logits;
}

TEST(DevicePath, ChangesNoBitOfNextTokensAndJoinsNothingForTraining) {
  JobSpec job = TinyJob();
  job.mutable_model()->set_tied_embeddings(true);
  job = OnLayout(job, {.tensor = 2, .context = 2, .pipeline = 2});
  ThreadNetworkHub hub;
  EXPECT_EQ(Logits(job, RemoteCpuDevices(&hub)), Logits(job, CpuDevices()));
  EXPECT_EQ(hub.groups(GroupWork::kCollectives), 3 * 4);   // tensor, context, pipeline
  EXPECT_EQ(hub.groups(GroupWork::kMessages), 4 + 4 * 2);  // activations, keys and values
  EXPECT_EQ(hub.groups(GroupWork::kRoundedSums), 0);
}

}  // namespace
}  // namespace twinstream::testing
