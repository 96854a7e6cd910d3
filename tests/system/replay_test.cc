// Steps that are recorded once and then run again give what steps that are issued one by one give,
// to the last bit.
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/profiled_device.h"
#include "gtest/gtest.h"
#include "parallel/span_totals.h"
#include "tests/testing/run_checks.h"
#include "tests/testing/tested_device.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

constexpr int64_t kSaved = 3, kLast = 6;
constexpr ExecutionOptions kReplay = {.replay = Replay::kOn};

// Three micro-batches, whose head's and blocks' gradients are first written and then added to.
JobSpec ThreeMicroBatches() {
  JobSpec job = TinyJob();
  job.mutable_model()->set_layers(2);
  job.mutable_train()->set_global_batch(3);
  job.mutable_train()->set_microbatch(1);
  return job;
}

// Of so many steps that may be replayed: the CPU records none.
int64_t Replayed(int64_t steps) { return TestedDevices()(0)->name() == "cpu" ? 0 : steps; }

TEST(DeviceTrainingReplay, ChangesNoBitOfATraining) {
  constexpr int64_t kSteps = 4;
  for (TrainSpec::Precision precision : {TrainSpec::FP32, TrainSpec::BF16}) {
    for (bool recompute : {false, true}) {
      JobSpec job = ThreeMicroBatches();
      job.mutable_train()->set_precision(precision);
      job.mutable_model()->set_tied_embeddings(recompute);
      job.mutable_parallel()->set_recompute(recompute ? ParallelSpec::FULL : ParallelSpec::NONE);
      job = OnLayout(job, {});
      SCOPED_TRACE(job.ShortDebugString());
      const RunRecord issued = RunSteps(job, {.last = kSteps, .make_device = TestedDevices()});
      const RunRecord replayed =
          RunSteps(job, {.last = kSteps, .execution = kReplay, .make_device = TestedDevices()});
      ExpectSameBits(replayed, issued);
      EXPECT_EQ(issued.replayed_steps, 0);
      EXPECT_EQ(replayed.replayed_steps, Replayed(kSteps - 1));
    }
  }
}

TEST(DeviceTrainingReplay, GoesOnAfterAnObservedStepAndAnEvaluation) {
  const JobSpec job = OnLayout(ThreeMicroBatches(), {});
  SpanTotals totals;
  const auto disturb = [&](Trainer& trainer, int64_t step) {
    trainer.Observe(step == 4 ? &totals : nullptr);
    if (step == 3 || step == 6) trainer.EvaluationLoss();
  };
  const RunRecord issued = RunSteps(job, {.last = kLast, .make_device = TestedDevices()});
  const RunRecord replayed = RunSteps(job, {.last = kLast,
                                            .execution = kReplay,
                                            .make_device = TestedDevices(),
                                            .before_step = disturb});
  ExpectSameBits(replayed, issued);
  EXPECT_EQ(replayed.replayed_steps, Replayed(kLast - 2));
  EXPECT_GT(totals.seconds(SpanKind::kForward), 0);
}

TEST(DeviceTrainingReplay, GoesOnFromACheckpoint) {
  const JobSpec job = OnLayout(ThreeMicroBatches(), {});
  const TemporaryDirectory directory;
  const RunRecord issued = RunSteps(job, {.last = kLast, .make_device = TestedDevices()});
  RunSteps(job, {.last = kSaved,
                 .save = directory.path(),
                 .execution = kReplay,
                 .make_device = TestedDevices()});
  const std::string step = directory.Path(absl::StrFormat("step_%09d", kSaved));
  const RunRecord resumed = RunSteps(job, {.first = kSaved + 1,
                                           .last = kLast,
                                           .load = step,
                                           .execution = kReplay,
                                           .make_device = TestedDevices()});
  EXPECT_TRUE(resumed.state == issued.state) << "weights or moments differ";
  EXPECT_EQ(resumed.losses,
            std::vector<double>(issued.losses.begin() + kSaved, issued.losses.end()));
  EXPECT_EQ(resumed.replayed_steps, Replayed(kLast - kSaved - 1));
}

TEST(DeviceTrainingReplay, IsLeftToStepsInWhichTheHostHasNoPart) {
  const auto replayed = [](const JobSpec& job, const DeviceMaker& devices) {
    return RunSteps(job, {.last = 3, .execution = kReplay, .make_device = devices}).replayed_steps;
  };
  JobSpec job = ThreeMicroBatches();
  OpProfile profile;
  const DeviceMaker profiled = [&](int rank) {
    return MakeProfiledDevice(TestedDevices()(rank), profile);
  };
  EXPECT_EQ(replayed(OnLayout(job, {}), profiled), 0);
  job.mutable_model()->mutable_moe()->set_experts(4);
  job.mutable_model()->mutable_moe()->set_top_k(2);
  EXPECT_EQ(replayed(OnLayout(job, {}), TestedDevices()), 0);
}

}  // namespace
}  // namespace twinstream::testing
