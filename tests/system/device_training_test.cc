// Training on a device: the reference's losses, gradients, norms and updates, whatever the layout;
// runs that stop and go on, also on another device.
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/testing/golden_run.h"
#include "tests/testing/run_checks.h"
#include "tests/testing/tested_device.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

constexpr int64_t kSaved = 3, kLast = 6;

void ExpectReference(const GoldenRun& golden, const JobSpec& job) {
  SCOPED_TRACE(LayoutName(job));
  ExpectWithinLimits(Compare(golden.Train(job, TestedDevices()), golden.golden()));
}

// The whole batch as one micro-batch.
void ExpectReference(const GoldenRun& golden, const Layout& layout) {
  const ParallelSpec parallel = SpecOf(layout);
  const int64_t microbatch = golden.golden().Integer("batch") / layout.data;
  ExpectReference(golden, golden.Job(parallel, microbatch, GridShape::From(parallel).ranks()));
}

// On these layouts, or in the long version on all of up to four ranks.
void ExpectReference(const std::string& file, const std::vector<Layout>& layouts) {
  const GoldenRun golden(file);
  if (Exhaustive()) {
    for (int ranks : {1, 2, 4}) {
      for (const JobSpec& job : golden.LegalJobs(ranks)) {
        // The load balance of several micro-batches is another loss than that of one.
        if (job.model().has_moe() && AccumulationSteps(job) != 1) continue;
        ExpectReference(golden, job);
      }
    }
    return;
  }
  for (const Layout& layout : layouts) ExpectReference(golden, layout);
}

TEST(DeviceTraining, OfADenseModelGivesTheReference) {
  ExpectReference("lm_siamese_hybrid_pre",
                  {Layout{}, Layout{.tensor = 2, .sequence_parallel = true}, Layout{.pipeline = 2},
                   Layout{.data = 2}, Layout{.context = 2}});
}

TEST(DeviceTraining, OfAMixtureOfExpertsGivesTheReference) {
  ExpectReference("moe_siamese_hybrid_pre", {Layout{.data = 2, .expert = 2}});
}

TEST(DeviceTraining, OfEveryGoldenFileOnOneRankGivesTheReference) {
  for (const std::vector<std::string>& files : {DenseGoldenFiles(), MoeGoldenFiles()}) {
    for (const std::string& file : files) {
      SCOPED_TRACE(file);
      ExpectReference(GoldenRun(file), Layout{});
    }
  }
}

// What emulated kernels do in seconds.
JobSpec ShortJob() {
  JobSpec job = TinyJob();
  job.mutable_model()->set_layers(2);
  job.mutable_train()->set_global_batch(2);
  return job;
}

JobSpec ShortMoeJob() {
  JobSpec job = ShortJob();
  job.mutable_model()->mutable_moe()->set_experts(4);
  job.mutable_model()->mutable_moe()->set_top_k(2);
  return job;
}

std::string StepDirectory(const TemporaryDirectory& directory) {
  return directory.Path(absl::StrFormat("step_%09d", kSaved));
}

std::vector<double> AfterSave(const std::vector<double>& all) {
  return {all.begin() + kSaved, all.end()};
}

void ExpectSameBitsAfterASave(const JobSpec& job) {
  const TemporaryDirectory directory;
  const DeviceMaker devices = TestedDevices();
  const RunRecord straight = RunSteps(job, {.last = kLast, .make_device = devices});
  RunSteps(job, {.last = kSaved, .save = directory.path(), .make_device = devices});
  const RunRecord resumed = RunSteps(job, {.first = kSaved + 1,
                                           .last = kLast,
                                           .load = StepDirectory(directory),
                                           .make_device = devices});
  EXPECT_EQ(resumed.losses, AfterSave(straight.losses));
  EXPECT_EQ(resumed.gradient_norms, AfterSave(straight.gradient_norms));
  EXPECT_TRUE(resumed.state == straight.state) << "weights or moments differ";
}

TEST(DeviceTraining, GoesOnAfterASaveAsIfItHadNeverStopped) {
  ExpectSameBitsAfterASave(OnLayout(ShortJob(), {.pipeline = 2}));
  ExpectSameBitsAfterASave(OnLayout(ShortMoeJob(), {.data = 2, .expert = 2}));
}

// What `from` saves, `to` holds to the last bit, and trains on as `from` would have.
void ExpectGoesOn(const JobSpec& job, const DeviceMaker& from, const DeviceMaker& to) {
  const TemporaryDirectory directory;
  const RunRecord straight = RunSteps(job, {.last = kLast, .make_device = from});
  const RunRecord saved =
      RunSteps(job, {.last = kSaved, .save = directory.path(), .make_device = from});
  const std::string step = StepDirectory(directory);
  const RunRecord loaded =
      RunSteps(job, {.first = kSaved + 1, .last = kSaved, .load = step, .make_device = to});
  EXPECT_TRUE(loaded.state == saved.state) << "weights or moments differ";
  const RunRecord resumed =
      RunSteps(job, {.first = kSaved + 1, .last = kLast, .load = step, .make_device = to});
  EXPECT_LE(LargestRelative(resumed.losses, AfterSave(straight.losses)), kLossLimit);
  EXPECT_LE(LargestRelative(resumed.gradient_norms, AfterSave(straight.gradient_norms)),
            kNormLimit);
}

TEST(DeviceTraining, GoesOnFromACheckpointOfTheCpu) {
  for (const JobSpec& job : {ShortJob(), ShortMoeJob()}) {
    ExpectGoesOn(OnLayout(job, {}), CpuDevices(), TestedDevices());
  }
}

TEST(DeviceTraining, GoesOnOnTheCpuFromACheckpointOfItsOwn) {
  for (const JobSpec& job : {ShortJob(), ShortMoeJob()}) {
    ExpectGoesOn(OnLayout(job, {}), TestedDevices(), CpuDevices());
  }
}

}  // namespace
}  // namespace twinstream::testing
