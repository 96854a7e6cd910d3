// Training on emulated cards, one of each rank's own, which NCCL joins: not one bit differs from
// ranks that share a card and go through memory of the host. What an event between two streams
// should put in order, and does not, would show here.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/cuda/emulated/runtime.h"
#include "core/profiled_device.h"
#include "gtest/gtest.h"
#include "parallel/span_totals.h"
#include "tests/testing/run_checks.h"
#include "tests/testing/tested_device.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

constexpr int64_t kUpdates = 3;

RunRecord RunOnHost(const gpu::EmulatedHost& host, const JobSpec& job, Overlap overlap) {
  gpu::SetEmulatedHost(host);
  return RunSteps(
      job, {.last = kUpdates, .execution = {.overlap = overlap}, .make_device = TestedDevices()});
}

void ExpectSameBitsOnOneCardAndOnMany(const JobSpec& job) {
  SCOPED_TRACE(job.parallel().ShortDebugString());
  const RunRecord shared = RunOnHost({.cards = 1}, job, Overlap::kOff);
  for (Overlap overlap : {Overlap::kOff, Overlap::kOn}) {
    ExpectSameBits(RunOnHost({.cards = GridShape::From(job.parallel()).ranks()}, job, overlap),
                   shared);
  }
}

JobSpec ShortJob(TrainSpec::Precision precision) {
  JobSpec job = TinyJob();
  job.mutable_model()->set_layers(2);
  job.mutable_train()->set_global_batch(4);
  job.mutable_train()->set_precision(precision);
  return job;
}

TEST(EmulatedCards, ChangeNoBitOfADenseModel) {
  JobSpec job = ShortJob(TrainSpec::BF16);
  ExpectSameBitsOnOneCardAndOnMany(
      OnLayout(job, {.tensor = 2, .data = 2, .sequence_parallel = true}));
  ExpectSameBitsOnOneCardAndOnMany(OnLayout(job, {.context = 2}));
  job.mutable_model()->set_tied_embeddings(true);
  job.mutable_parallel()->set_shard_optimizer(true);
  ExpectSameBitsOnOneCardAndOnMany(OnLayout(job, {.pipeline = 2, .data = 2}));
}

// Of many micro-batches: their slots are used again while messages from them are under way.
TEST(EmulatedCards, ChangeNoBitOfManyMicroBatches) {
  JobSpec job = ShortJob(TrainSpec::FP32);
  job.mutable_train()->set_global_batch(8);
  job = OnLayout(job, {.pipeline = 2});
  const RunRecord shared = RunOnHost({.cards = 1}, job, Overlap::kOff);
  ExpectSameBits(RunOnHost({.cards = 2, .one_stream_at_a_time = true}, job, Overlap::kOff), shared);
}

// Chunks whose messages cross: a rank that waited for its own before it went on could wait for
// ever.
TEST(EmulatedCards, LoadNoKernelWhileMessagesAreUnderWay) {
  JobSpec job = ShortJob(TrainSpec::BF16);
  job.mutable_model()->set_layers(4);
  job.mutable_train()->set_global_batch(6);
  job = OnLayout(job, {.pipeline = 2, .virtual_stages = 2, .schedule = ParallelSpec::INTERLEAVED});
  ExpectSameBits(RunOnHost({.cards = 2, .loading_waits = true}, job, Overlap::kOn),
                 RunOnHost({.cards = 1}, job, Overlap::kOff));
}

TEST(EmulatedCards, ChangeNoBitOfAMixtureOfExperts) {
  JobSpec job = ShortJob(TrainSpec::FP32);
  job.mutable_model()->mutable_moe()->set_experts(4);
  job.mutable_model()->mutable_moe()->set_top_k(2);
  ExpectSameBitsOnOneCardAndOnMany(OnLayout(job, {.pipeline = 2, .data = 2, .expert = 2}));
}

// ---- Steps that are recorded once and then run again: RunSpan without a device.

constexpr ExecutionOptions kReplay = {.replay = Replay::kOn};

RunRecord RunOnCards(const JobSpec& job, RunSpan span) {
  gpu::SetEmulatedHost({.cards = GridShape::From(job.parallel()).ranks()});
  if (span.make_device == nullptr) span.make_device = TestedDevices();
  return RunSteps(job, span);
}

// The first step is issued.
void ExpectSameBitsFromReplays(const JobSpec& job) {
  SCOPED_TRACE(job.parallel().ShortDebugString());
  const RunRecord issued = RunOnCards(job, {.last = kUpdates, .make_device = nullptr});
  for (Overlap overlap : {Overlap::kOff, Overlap::kOn}) {
    const ExecutionOptions execution = {.overlap = overlap, .replay = Replay::kOn};
    const RunRecord replayed =
        RunOnCards(job, {.last = kUpdates, .execution = execution, .make_device = nullptr});
    ExpectSameBits(replayed, issued);
    EXPECT_EQ(replayed.replayed_steps, kUpdates - 1);
  }
}

TEST(EmulatedCardsReplay, ChangesNoBitOfADenseModel) {
  JobSpec job = ShortJob(TrainSpec::FP32);
  ExpectSameBitsFromReplays(OnLayout(job, {.tensor = 2, .data = 2, .sequence_parallel = true}));
  job.mutable_parallel()->set_recompute(ParallelSpec::FULL);
  ExpectSameBitsFromReplays(OnLayout(job, {.context = 2}));
}

TEST(EmulatedCardsReplay, ChangesNoBitOfAPipelineWithTiedEmbeddingsAndAShardedOptimizer) {
  JobSpec job = ShortJob(TrainSpec::BF16);
  job.mutable_model()->set_tied_embeddings(true);
  job.mutable_parallel()->set_shard_optimizer(true);
  ExpectSameBitsFromReplays(OnLayout(job, {.pipeline = 2, .data = 2}));
  job.mutable_train()->set_precision(TrainSpec::FP32);
  ExpectSameBitsFromReplays(OnLayout(job, {.pipeline = 2, .schedule = ParallelSpec::ZERO_BUBBLE}));
}

TEST(EmulatedCardsReplay, GoesOnAfterAnEvaluationAndAnObservedStep) {
  constexpr int64_t kLast = 6;
  JobSpec job = ShortJob(TrainSpec::FP32);
  job.mutable_parallel()->set_shard_optimizer(true);
  job = OnLayout(job, {.pipeline = 2, .data = 2});
  std::vector<SpanTotals> totals(4);
  const auto disturb = [&](Trainer& trainer, int64_t step) {
    const int rank = trainer.grid().world().rank();
    trainer.Observe(step == 4 ? &totals[static_cast<size_t>(rank)] : nullptr);
    if (step == 3 || step == 6) trainer.EvaluationLoss();
  };
  const RunRecord issued = RunOnCards(job, {.last = kLast, .make_device = nullptr});
  const RunRecord replayed = RunOnCards(
      job, {.last = kLast, .execution = kReplay, .make_device = nullptr, .before_step = disturb});
  ExpectSameBits(replayed, issued);
  EXPECT_EQ(replayed.replayed_steps, kLast - 2);
}

// A device that is profiled records nothing.
TEST(EmulatedCardsReplay, IsForNoRankWhereOneRecordsNothing) {
  const JobSpec job = OnLayout(ShortJob(TrainSpec::FP32), {.pipeline = 2, .data = 2});
  OpProfile profile;
  const DeviceMaker devices = [&](int rank) {
    std::unique_ptr<Device> device = TestedDevices()(rank);
    return rank == 1 ? MakeProfiledDevice(std::move(device), profile) : std::move(device);
  };
  const RunRecord issued = RunOnCards(job, {.last = kUpdates, .make_device = nullptr});
  const RunRecord refused =
      RunOnCards(job, {.last = kUpdates, .execution = kReplay, .make_device = devices});
  ExpectSameBits(refused, issued);
  EXPECT_EQ(refused.replayed_steps, 0);
}

// The host moves a model's tensors, or counts experts' rows.
TEST(EmulatedCardsReplay, IsLeftToStepsInWhichTheHostHasNoPart) {
  JobSpec job = ShortJob(TrainSpec::FP32);
  gpu::SetEmulatedHost({.cards = 1});
  const RunSpan span = {.last = 2, .execution = kReplay, .make_device = TestedDevices()};
  EXPECT_EQ(RunSteps(OnLayout(job, {.pipeline = 2}), span).replayed_steps, 0);
  job.mutable_model()->mutable_moe()->set_experts(4);
  job.mutable_model()->mutable_moe()->set_top_k(2);
  EXPECT_EQ(RunOnCards(OnLayout(job, {.data = 2}), span).replayed_steps, 0);
}

// Rank 1 does something else in place of its fourth step, a replayed one, once rank 0 is at it.
void WithoutRank1(double timeout_seconds, const std::function<void()>& otherwise) {
  std::atomic<bool> is_there = false;
  const auto stay_away = [&](Trainer& trainer, int64_t step) {
    if (step != 4) return;
    if (trainer.grid().world().rank() == 0) is_there = true;
    if (trainer.grid().world().rank() != 1) return;
    while (!is_there) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::seconds(2));
    otherwise();
    std::this_thread::sleep_for(std::chrono::minutes(5));
  };
  RunOnCards(OnLayout(ShortJob(TrainSpec::FP32), {.data = 2}), {.last = 4,
                                                                .execution = kReplay,
                                                                .timeout_seconds = timeout_seconds,
                                                                .make_device = nullptr,
                                                                .before_step = stay_away});
}

class EmulatedCardsReplayDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(EmulatedCardsReplayDeathTest, ARankThatDoesNotComeToAReplayedStepIsNoticedInTime) {
  EXPECT_EXIT(
      WithoutRank1(3, [] {}), ::testing::ExitedWithCode(1),
      "replayed step over world has not ended for 3 s: another rank of the group has failed "
      "or has not come to it");
}

TEST_F(EmulatedCardsReplayDeathTest, AFailureOfNcclDuringAReplayedStepIsToldWithItsGroup) {
  EXPECT_EXIT(WithoutRank1(60, [] { gpu::FailNccl(ncclRemoteError); }),
              ::testing::ExitedWithCode(1),
              "replayed step over world failed: [a-z ]+: remote process exited or there was a "
              "network error: FailNccl was called");
}

}  // namespace
}  // namespace twinstream::testing
