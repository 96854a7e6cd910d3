#include "launch/training_loop.h"

#include <sys/resource.h>

#include <chrono>

#include "absl/strings/str_format.h"
#include "launch/evaluation.h"
#include "launch/lr_schedule.h"
#include "launch/version.h"
#include "models/flops.h"
#include "parallel/checkpoint.h"
#include "parallel/checkpoint_directory.h"
#include "parallel/collectives.h"

namespace twinstream {
namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool Due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

// Largest resident size that any rank has had.
int64_t PeakMemory(Communicator& world) {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(
      AllReduceValue(world, static_cast<double>(usage.ru_maxrss) * 1024, Reduction::kMax));
}

}  // namespace

TrainingLoop::TrainingLoop(Trainer& trainer, Runtime& runtime, Device& device,
                           const TokenDataset& train, const TokenDataset* validation,
                           MetricsWriter* metrics, Progress* progress, double peak_flops)
    : trainer_(trainer),
      runtime_(runtime),
      device_(device),
      train_(train),
      validation_(validation),
      metrics_(metrics),
      progress_(progress),
      peak_flops_(peak_flops) {}

absl::Status TrainingLoop::Run(int64_t first_update, int64_t tokens) {
  const JobSpec& job = trainer_.job();
  const int64_t steps = job.train().steps();
  const BatchLoader loader(train_, trainer_.batch_shape());
  HostBatch batch = trainer_.EmptyBatch();
  const double start = Seconds();
  const int64_t tokens_before = tokens;
  tokens_ = tokens;
  StepResult result;
  for (int64_t step = first_update; step <= steps; ++step) {
    ActivityScope doing("step", step);
    const double step_start = Seconds();
    const absl::Status loaded =
        loader.Load((step - 1) * job.train().global_batch(), absl::MakeSpan(batch.tokens),
                    absl::MakeSpan(batch.targets));
    Check(loaded.ok(), "%s", loaded.message());
    result = trainer_.Step(batch, step, LearningRate(job.optimizer(), step, steps),
                           runtime_.stop_requested());
    tokens_ += job.train().global_batch() * job.model().sequence();
    const bool last = step == steps || result.stop;

    if (last || Due(step, job.metrics().every_steps()) || !result.finite) {
      if (absl::Status s = Log(MetricsOf(result, step, Seconds() - step_start)); !s.ok()) return s;
    }
    if (!result.finite) {
      return absl::InternalError(
          absl::StrFormat("step %d: loss %g, gradient norm %g: training stopped before the update "
                          "(train.on_nonfinite: STOP). Go on "
                          "from the last checkpoint in %s with a smaller optimizer.peak_lr or a "
                          "longer optimizer.warmup_steps.",
                          step, result.loss, result.gradient_norm, job.checkpoint().directory()));
    }
    if (validation_ != nullptr && (step == steps || Due(step, job.train().eval_every()))) {
      if (absl::Status s = EvaluateAndLog(step); !s.ok()) return s;
    }
    if (last || Due(step, job.checkpoint().every_steps())) {
      if (absl::Status s = Save(step); !s.ok()) return s;
    }
    if (result.stop && step < steps) {
      return absl::CancelledError(
          absl::StrFormat("stopped by a signal after step %d, which is saved in %s; --resume=auto "
                          "goes on from there",
                          step, job.checkpoint().directory()));
    }
  }
  if (progress_ != nullptr) {
    progress_->Finish({.steps = steps - first_update + 1,
                       .tokens = tokens_ - tokens_before,
                       .seconds = Seconds() - start,
                       .final_loss = result.loss,
                       .validation_loss = validation_loss_,
                       .checkpoint_directory = job.checkpoint().directory()});
  }
  return absl::OkStatus();
}

StepMetrics TrainingLoop::MetricsOf(const StepResult& result, int64_t step, double seconds) {
  const JobSpec& job = trainer_.job();
  const double step_tokens =
      static_cast<double>(job.train().global_batch() * job.model().sequence());
  const double tokens_per_second = step_tokens / seconds;
  return {.step = step,
          .loss = result.loss,
          .cross_entropy = result.cross_entropy,
          .grad_norm = result.gradient_norm,
          .learning_rate = LearningRate(job.optimizer(), step, job.train().steps()),
          .tokens = tokens_,
          .tokens_per_second = tokens_per_second,
          .step_seconds = seconds,
          .model_flops_utilization =
              TrainingFlopsPerToken(job.model()) * tokens_per_second / peak_flops_,
          .memory_bytes = PeakMemory(runtime_.world())};
}

// Rank 0 writes; a full disk there must end all ranks.
absl::Status TrainingLoop::AgreeOnWriting(const absl::Status& rank0) {
  return AgreeOnStatus(runtime_.world(), rank0);
}

absl::Status TrainingLoop::Log(const StepMetrics& metrics) {
  absl::Status status;
  if (metrics_ != nullptr) status = metrics_->Write(metrics);
  if (progress_ != nullptr) progress_->Step(metrics);
  return AgreeOnWriting(status);
}

absl::Status TrainingLoop::EvaluateAndLog(int64_t step) {
  const Evaluation evaluation =
      Evaluate(trainer_, *validation_, trainer_.job().train().eval_batches());
  validation_loss_ = evaluation.loss;
  const ValidationMetrics metrics = {.step = step, .loss = evaluation.loss};
  absl::Status status;
  if (metrics_ != nullptr) status = metrics_->Write(metrics);
  if (progress_ != nullptr) progress_->Validation(metrics);
  return AgreeOnWriting(status);
}

absl::Status TrainingLoop::Save(int64_t step) {
  ActivityScope doing("saving of a checkpoint");
  const JobSpec& job = trainer_.job();
  const CheckpointSpec& spec = job.checkpoint();
  const SaveRequest request = {.step = step,
                               .next_sample = step * job.train().global_batch(),
                               .tokens = tokens_,
                               .job = job,
                               .layout = trainer_.grid().shape().ToString(),
                               .program = kProgramVersion};
  const std::vector<Piece> owned = trainer_.optimizer().OwnedPieces();
  if (absl::Status s = SaveCheckpoint(spec.directory(), request, owned, device_, runtime_.world());
      !s.ok())
    return s;
  absl::Status pruned;
  if (runtime_.rank() == 0)
    pruned = PruneCheckpoints(spec.directory(), spec.keep(), spec.keep_every());
  return AgreeOnWriting(pruned);
}

}  // namespace twinstream
