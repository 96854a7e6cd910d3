#include "launch/command_train.h"

#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/file.h"
#include "launch/host.h"
#include "launch/job_setup.h"
#include "launch/metrics.h"
#include "launch/progress.h"
#include "launch/resume.h"
#include "launch/training_loop.h"
#include "parallel/collectives.h"
#include "parallel/initial_weights.h"
#include "proto/job_resume.h"
#include "proto/job_spec.h"

namespace twinstream {
namespace {

void Say(Runtime& runtime, absl::string_view text) {
  if (runtime.rank() == 0) absl::PrintF("%s\n", text);
}

struct Start {
  JobSpec job;  // resolved
  ResumePoint point;
  int64_t updates_done() const { return point.fresh() ? 0 : point.manifest.step(); }
};

absl::StatusOr<Start> DecideStart(Runtime& runtime, JobSpec asked, const std::string& resume,
                                  absl::Span<const std::string> except) {
  absl::StatusOr<JobSpec> job = ResolveForRanks(runtime, asked);
  if (!job.ok()) return job.status();
  absl::StatusOr<ResumePoint> point =
      ChooseResumePoint(runtime, resume, job->checkpoint().directory(), except);
  if (!point.ok()) return point.status();
  for (const std::string& warning : point->warnings)
    Say(runtime, absl::StrCat("warning: ", warning));
  if (point->fresh()) return Start{*std::move(job), *std::move(point)};

  const JobSpec& saved = point->manifest.job();
  if (!asked.train().has_global_batch()) {
    // Its default follows the number of data ranks; going on means going on with the same batches.
    asked.mutable_train()->set_global_batch(saved.train().global_batch());
    job = ResolveForRanks(runtime, asked);
    if (!job.ok()) return job.status();
  }
  std::vector<std::string> changes;
  if (absl::Status s = CheckResumable(saved, *job, &changes); !s.ok()) return s;
  for (const std::string& change : changes)
    Say(runtime, absl::StrCat("changed since the checkpoint: ", change));
  return Start{*std::move(job), *std::move(point)};
}

void Introduce(Runtime& runtime, Trainer& trainer, const TokenDataset& train, double peak_flops) {
  const JobSpec& job = trainer.job();
  int64_t parameters = 0;
  for (const ModelParameter& parameter : trainer.model_parameters())
    parameters += parameter.shape.elements();
  Say(runtime,
      absl::StrFormat("%s: %s, %d layers of %d, %.2f M parameters; %s; %d ranks on hosts like %s",
                      job.name(), ModelSpec::Residual_Name(job.model().residual()),
                      job.model().layers(), job.model().hidden(),
                      static_cast<double>(parameters) / 1e6, trainer.grid().shape().ToString(),
                      runtime.size(), runtime.hostname()));
  const int64_t samples = job.train().steps() * job.train().global_batch();
  Say(runtime,
      absl::StrFormat("data: %d training tokens, %.2f epochs in %d steps of %d sequences of %d",
                      train.tokens(), train.Epochs(samples), job.train().steps(),
                      job.train().global_batch(), job.model().sequence()));
  Say(runtime, absl::StrFormat("memory of rank 0: %s", trainer.memory().ToString()));
  Say(runtime,
      absl::StrFormat("schedule: %s, %d micro-batches, bubble %.1f %%; measured peak %.1f GFLOP/s",
                      ParallelSpec::Schedule_Name(job.parallel().schedule()),
                      trainer.batch_shape().microbatches, 100 * trainer.schedule().bubble,
                      peak_flops / 1e9));
}

// FLOP/s of all ranks' devices together, measured at the same time, as they will work.
double PeakFlops(Runtime& runtime, Device& device) {
  runtime.world().Barrier();
  return AllReduceValue(runtime.world(), MeasurePeakFlops(device), Reduction::kSum);
}

// Weights from the checkpoint, from train.initial_weights or from the seed.
absl::Status FillWeights(Runtime& runtime, Trainer& trainer, Device& device, const Start& start) {
  if (!start.point.fresh())
    return LoadInto(trainer, runtime.world(), device, start.point.step_directory);
  const std::string& path = start.job.train().initial_weights();
  if (path.empty()) {
    trainer.InitializeWeights();
    return absl::OkStatus();
  }
  std::vector<TensorSpec> model;
  for (const ModelParameter& parameter : trainer.model_parameters()) {
    model.push_back({parameter.name, DType::kF32, parameter.shape});
  }
  return AgreeOnStatus(runtime.world(),
                       LoadInitialWeights(path, model, trainer.parameters().ValuePieces(), device));
}

struct Outputs {
  std::optional<MetricsWriter> metrics;
  std::optional<Progress> progress;
};

absl::StatusOr<Outputs> OpenOutputs(Runtime& runtime, const Start& start) {
  Outputs outputs;
  absl::Status status;
  if (runtime.rank() == 0) {
    const MetricsSpec& spec = start.job.metrics();
    absl::StatusOr<MetricsWriter> metrics =
        MetricsWriter::Open({.directory = spec.directory(),
                             .tensorboard = spec.tensorboard(),
                             .resumed_step = start.updates_done()});
    status = metrics.status();
    if (status.ok()) {
      outputs.metrics.emplace(*std::move(metrics));
      status = ReplaceFile(absl::StrCat(spec.directory(), "/job.textproto"), JobText(start.job));
    }
    outputs.progress.emplace(ProgressOptions{.out = stdout,
                                             .terminal = WatchedOnTerminal(),
                                             .columns = TerminalColumns(stdout),
                                             .steps = start.job.train().steps()});
  }
  if (absl::Status s = AgreeOnStatus(runtime.world(), status); !s.ok()) return s;
  return outputs;
}

struct Data {
  TokenDataset train;
  std::optional<TokenDataset> validation;
};

absl::StatusOr<Data> OpenAllData(Runtime& runtime, const JobSpec& job) {
  absl::StatusOr<TokenDataset> train = OpenData(runtime, job, DataPart::kTrain);
  if (!train.ok()) return train.status();
  Data data = {*std::move(train), std::nullopt};
  if (job.data().validation_size() > 0) {
    absl::StatusOr<TokenDataset> validation = OpenData(runtime, job, DataPart::kValidation);
    if (!validation.ok()) return validation.status();
    data.validation.emplace(*std::move(validation));
  }
  return data;
}

}  // namespace

absl::Status CommandTrain(Runtime& runtime, const CommandLine& line) {
  absl::StatusOr<JobSpec> asked = AgreeOnJob(runtime, line.positional[0], line.overrides);
  if (!asked.ok()) return asked.status();
  std::vector<std::string> damaged;  // checkpoints that --resume=auto passed over
  while (true) {
    const absl::StatusOr<Start> start = DecideStart(runtime, *asked, line.resume, damaged);
    if (!start.ok()) return start.status();
    const JobSpec& job = start->job;
    NameRank(runtime, job);
    if (start->updates_done() >= job.train().steps()) {
      Say(runtime, absl::StrFormat("%s is complete: %s has all of %d steps", job.name(),
                                   start->point.step_directory, job.train().steps()));
      return absl::OkStatus();
    }
    const absl::StatusOr<Data> data = OpenAllData(runtime, job);
    if (!data.ok()) return data.status();
    const absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(runtime, job);
    if (!device.ok()) return device.status();

    Trainer trainer(job, Purpose::kTraining, AccumulationSteps(job), **device, runtime.transport());
    if (absl::Status s = CheckHostMemory(runtime, trainer.memory()); !s.ok()) return s;
    trainer.Materialize();
    if (absl::Status s = FillWeights(runtime, trainer, **device, *start); !s.ok()) {
      if (line.resume != "auto" || start->point.fresh() || !absl::IsDataLoss(s)) return s;
      Say(runtime, absl::StrCat("warning: ", s.message(), "; an older checkpoint is tried"));
      damaged.push_back(start->point.step_directory);
      continue;
    }
    const double peak_flops = PeakFlops(runtime, **device);
    Introduce(runtime, trainer, data->train, peak_flops);
    if (!start->point.fresh()) {
      Say(runtime, absl::StrFormat("going on from %s, written by %s", start->point.step_directory,
                                   start->point.manifest.layout()));
    }
    absl::StatusOr<Outputs> outputs = OpenOutputs(runtime, *start);
    if (!outputs.ok()) return outputs.status();
    TrainingLoop loop(trainer, runtime, **device, data->train,
                      data->validation ? &*data->validation : nullptr,
                      outputs->metrics ? &*outputs->metrics : nullptr,
                      outputs->progress ? &*outputs->progress : nullptr, peak_flops);
    return loop.Run(start->updates_done() + 1, start->point.manifest.tokens());
  }
}

}  // namespace twinstream
