#include "launch/training_loop.h"

#include <chrono>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launch/evaluation.h"
#include "launch/host.h"
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

// The first one's code, and what both have to say.
absl::Status Both(const absl::Status& first, const absl::Status& second) {
  if (first.ok() || second.ok()) return first.ok() ? second : first;
  return absl::Status(first.code(), absl::StrCat(first.message(), "\n", second.message()));
}

}  // namespace

StepResult TrainUpdate(Trainer& trainer, const TokenDataset& data, int64_t update,
                       bool stop_requested) {
  const JobSpec& job = trainer.job();
  HostBatch& batch = trainer.batch();
  const absl::Status loaded =
      BatchLoader(data, trainer.batch_shape())
          .Load((update - 1) * job.train().global_batch(), absl::MakeSpan(batch.tokens),
                absl::MakeSpan(batch.targets));
  Check(loaded.ok(), "%s", loaded.message());
  const double learning_rate = LearningRate(job.optimizer(), update, job.train().steps());
  return trainer.Step(update, learning_rate, stop_requested);
}

TrainingLoop::TrainingLoop(Trainer& trainer, Runtime& runtime, Device& device,
                           const TrainingData& data, TrainingOutputs& outputs, double peak_flops)
    : trainer_(trainer),
      runtime_(runtime),
      device_(device),
      data_(data),
      outputs_(outputs),
      peak_flops_(peak_flops) {}

absl::Status TrainingLoop::Run(int64_t first_update) {
  RunTracer tracer(trainer_, first_update, trainer_.job().train().steps());
  const absl::Status trained = RunUpdates(first_update, tracer);
  const absl::Status traced = tracer.Finish();
  return Both(Both(trained, traced), ReportProfile());
}

absl::Status TrainingLoop::RunUpdates(int64_t first_update, RunTracer& tracer) {
  const int64_t steps = trainer_.job().train().steps();
  const std::string& checkpoints = trainer_.job().checkpoint().directory();
  const double start = Seconds();
  StepResult result;
  for (int64_t step = first_update; step <= steps; ++step) {
    ActivityScope doing("step", step);
    tracer.BeginStep(step);
    const double step_start = Seconds();
    outputs_.profile.BeginStep();
    result = TrainUpdate(trainer_, data_.train, step, runtime_.stop_requested());
    outputs_.profile.EndStep();
    const double seconds = Seconds() - step_start;
    absl::Status told = tracer.EndStep(step);
    told = Both(told, LogIfDue(result, step, seconds));
    if (!result.finite) {
      const std::string advice =
          step == 1 ? "No update has been made yet: see model.init and train.initial_weights."
                    : absl::StrCat("Go on from the last checkpoint in ", checkpoints,
                                   ", if any, with a smaller optimizer.peak_lr or a longer "
                                   "optimizer.warmup_steps.");
      const absl::Status stopped = absl::InternalError(
          absl::StrFormat("step %d: loss %g, gradient norm %g: training stopped before the update "
                          "(train.on_nonfinite: STOP). %s",
                          step, result.loss, result.gradient_norm, advice));
      return Both(stopped, told);
    }
    if (told.ok()) told = EvaluateIfDue(step);
    // What cannot be told of a step shall not cost its weights.
    if (!told.ok()) return Both(told, Save(step));
    if (IsLast(step) || result.stop || Due(step, trainer_.job().checkpoint().every_steps())) {
      if (absl::Status s = Save(step); !s.ok()) return s;
    }
    if (result.stop && !IsLast(step)) {
      return absl::CancelledError(
          absl::StrFormat("stopped by a signal after step %d, which is saved in %s; --resume=auto "
                          "goes on from there",
                          step, checkpoints));
    }
  }
  const std::optional<TimeShares> shares = tracer.Shares();
  if (outputs_.progress) {
    const bool has_bubble = shares && trainer_.job().parallel().pipeline() > 1;
    outputs_.progress->Finish(
        {.steps = steps - first_update + 1,
         .tokens = TokensAfter(steps) - TokensAfter(first_update - 1),
         .seconds = Seconds() - start,
         .final_loss = result.loss,
         .validation_loss = validation_loss_,
         .communication = shares ? std::optional(shares->communication) : std::nullopt,
         .bubble = has_bubble ? std::optional(shares->bubble) : std::nullopt,
         .planned_bubble = trainer_.schedule().bubble,
         .checkpoint_directory = checkpoints});
  }
  return absl::OkStatus();
}

bool TrainingLoop::IsLast(int64_t step) const { return step == trainer_.job().train().steps(); }

int64_t TrainingLoop::TokensAfter(int64_t updates) const {
  return updates * trainer_.job().train().global_batch() * trainer_.job().model().sequence();
}

absl::Status TrainingLoop::LogIfDue(const StepResult& result, int64_t step, double seconds) {
  const JobSpec& job = trainer_.job();
  if (!IsLast(step) && !result.stop && result.finite && !Due(step, job.metrics().every_steps())) {
    return absl::OkStatus();
  }
  const double tokens_per_second = static_cast<double>(TokensAfter(1)) / seconds;
  StepMetrics metrics = {
      .step = step,
      .loss = result.loss,
      .cross_entropy = result.cross_entropy,
      .grad_norm = result.gradient_norm,
      .learning_rate = LearningRate(job.optimizer(), step, job.train().steps()),
      .tokens = TokensAfter(step),
      .tokens_per_second = tokens_per_second,
      .step_seconds = seconds,
      .model_flops_utilization =
          TrainingFlopsPerToken(job.model()) * tokens_per_second / peak_flops_,
      .memory_bytes = static_cast<int64_t>(AllReduceValue(
          runtime_.world(), static_cast<double>(PeakResidentBytes()), Reduction::kMax))};
  if (job.model().has_moe()) {
    const absl::Span<const int64_t> tokens = trainer_.expert_tokens();
    metrics.moe = MoeMetrics{.load_balance = result.load_balance,
                             .router_z = result.router_z,
                             .expert_imbalance = result.expert_imbalance,
                             .expert_tokens = {tokens.begin(), tokens.end()}};
  }
  absl::Status written;
  if (outputs_.metrics) written = outputs_.metrics->Write(metrics);
  if (outputs_.progress) outputs_.progress->Step(metrics);
  return AgreeOnStatus(runtime_.world(), written);
}

absl::Status TrainingLoop::ReportProfile() {
  if (!trainer_.job().metrics().profile() || outputs_.profile.steps() == 0) return absl::OkStatus();
  absl::Status written;
  if (runtime_.rank() == 0) {
    outputs_.progress->Table(ProfileTable(outputs_.profile, outputs_.ceilings));
    written = WriteMetricsFile(trainer_.job().metrics(), "profile.json",
                               ProfileJson(outputs_.profile, outputs_.ceilings));
  }
  return AgreeOnStatus(runtime_.world(), written);
}

absl::Status TrainingLoop::EvaluateIfDue(int64_t step) {
  const TrainSpec& train = trainer_.job().train();
  if (!data_.validation || (!IsLast(step) && !Due(step, train.eval_every()))) {
    return absl::OkStatus();
  }
  validation_loss_ = Evaluate(trainer_, *data_.validation, train.eval_batches()).loss;
  const ValidationMetrics metrics = {.step = step, .loss = *validation_loss_};
  absl::Status written;
  if (outputs_.metrics) written = outputs_.metrics->Write(metrics);
  if (outputs_.progress) outputs_.progress->Validation(metrics);
  return AgreeOnStatus(runtime_.world(), written);
}

absl::Status TrainingLoop::Save(int64_t step) {
  const JobSpec& job = trainer_.job();
  const CheckpointSpec& spec = job.checkpoint();
  ActivityScope doing("saving of a checkpoint");
  const SaveRequest request = {.step = step,
                               .next_sample = step * job.train().global_batch(),
                               .tokens = TokensAfter(step),
                               .job = job,
                               .layout = trainer_.grid().shape().ToString(),
                               .program = kProgramVersion};
  absl::Status status = SaveCheckpoint(
      spec.directory(), request, trainer_.optimizer().OwnedPieces(), device_, runtime_.world());
  if (status.ok() && runtime_.rank() == 0) {
    status = PruneCheckpoints(spec.directory(), spec.keep(), spec.keep_every());
  }
  return AgreeOnStatus(runtime_.world(), status);
}

}  // namespace twinstream
