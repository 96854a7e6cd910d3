// However a model's tensors get from rank to rank, through memory of the host, staged by way of it
// or by a network of devices, with or without overlap: not one bit of what comes out changes.
#include "gtest/gtest.h"
#include "tests/testing/run_checks.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

constexpr int64_t kUpdates = 3;

void ExpectSameRun(const RunRecord& run, const RunRecord& on_host) {
  ExpectSameBits(run, on_host);
  EXPECT_EQ(run.replicas, on_host.replicas);
}

void ExpectSameBitsOnEveryPath(const JobSpec& job) {
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
    EXPECT_GT(hub.groups(), 0);
  }
}

TEST(DevicePath, ChangesNoBitOnAnyLayout) {
  for (const Layout& layout :
       {Layout{.data = 3}, Layout{.pipeline = 4}, Layout{.tensor = 2, .sequence_parallel = true},
        Layout{.context = 4}, Layout{.tensor = 2, .context = 2, .pipeline = 2, .data = 2},
        Layout{.pipeline = 2, .virtual_stages = 2, .schedule = ParallelSpec::INTERLEAVED},
        Layout{.pipeline = 2, .data = 2, .schedule = ParallelSpec::ZERO_BUBBLE}}) {
    for (bool tied : {false, true}) {
      JobSpec job = TinyJob();
      job.mutable_train()->set_precision(tied ? TrainSpec::BF16 : TrainSpec::FP32);
      job.mutable_model()->set_tied_embeddings(tied);
      job.mutable_parallel()->set_shard_optimizer(tied);
      ExpectSameBitsOnEveryPath(OnLayout(job, layout));
    }
  }
}

TEST(DevicePath, ChangesNoBitOfMixturesOfExperts) {
  JobSpec job = TinyJob();
  job.mutable_model()->mutable_moe()->set_experts(4);
  job.mutable_model()->mutable_moe()->set_top_k(2);
  for (const Layout& layout : {Layout{.tensor = 2, .data = 2, .expert = 2},
                               Layout{.pipeline = 2, .data = 2, .expert = 2}}) {
    ExpectSameBitsOnEveryPath(OnLayout(job, layout));
  }
}

}  // namespace
}  // namespace twinstream::testing
