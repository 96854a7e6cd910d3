// Training on emulated cards, one of each rank's own, which NCCL joins: not one bit differs from
// ranks that share a card and go through memory of the host. What an event between two streams
// should put in order, and does not, would show here.
#include "core/cuda/emulated/runtime.h"
#include "gtest/gtest.h"
#include "tests/testing/run_checks.h"
#include "tests/testing/tested_device.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

constexpr int64_t kUpdates = 3;

RunRecord RunOnCards(int cards, const JobSpec& job, Overlap overlap) {
  gpu::SetEmulatedHost({.cards = cards});
  return RunSteps(
      job, {.last = kUpdates, .execution = {.overlap = overlap}, .make_device = TestedDevices()});
}

void ExpectSameBitsOnOneCardAndOnMany(const JobSpec& job) {
  SCOPED_TRACE(job.parallel().ShortDebugString());
  const RunRecord shared = RunOnCards(1, job, Overlap::kOff);
  for (Overlap overlap : {Overlap::kOff, Overlap::kOn}) {
    ExpectSameBits(RunOnCards(GridShape::From(job.parallel()).ranks(), job, overlap), shared);
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

TEST(EmulatedCards, ChangeNoBitOfAMixtureOfExperts) {
  JobSpec job = ShortJob(TrainSpec::FP32);
  job.mutable_model()->mutable_moe()->set_experts(4);
  job.mutable_model()->mutable_moe()->set_top_k(2);
  ExpectSameBitsOnOneCardAndOnMany(OnLayout(job, {.pipeline = 2, .data = 2, .expert = 2}));
}

}  // namespace
}  // namespace twinstream::testing
