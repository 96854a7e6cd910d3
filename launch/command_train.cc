#include "launch/command_train.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/file.h"
#include "core/profiled_device.h"
#include "launch/host.h"
#include "launch/job_setup.h"
#include "launch/resume.h"
#include "launch/training_loop.h"
#include "models/context.h"
#include "parallel/checkpoint.h"
#include "parallel/collectives.h"
#include "parallel/initial_weights.h"
#include "proto/job_resume.h"
#include "proto/job_spec.h"

namespace twinstream {
namespace {

void Say(Runtime& runtime, absl::string_view text) {
  if (runtime.rank() == 0) absl::PrintF("%s\n", text);
}

// Where a run begins.
struct Start {
  JobSpec job;  // resolved
  ResumePoint point;
  std::string resume;                     // what the point was chosen by
  std::vector<std::string> passed_over;   // checkpoints that failed to load
  std::vector<std::string> changes = {};  // of the job since the point
  int64_t updates_done() const { return point.fresh() ? 0 : point.manifest.step(); }
};

// The job as it will be run, and the checkpoint it goes on from, if any. Collective.
absl::StatusOr<Start> DecideStart(Runtime& runtime, JobSpec asked, const std::string& resume,
                                  absl::Span<const std::string> except) {
  absl::StatusOr<JobSpec> job = ResolveForRanks(runtime, asked);
  if (!job.ok()) return job.status();
  absl::StatusOr<ResumePoint> point =
      ChooseResumePoint(runtime, resume, job->checkpoint().directory(), except);
  if (!point.ok()) return point.status();
  const std::vector<std::string> passed_over(except.begin(), except.end());
  if (point->fresh()) return Start{*std::move(job), *std::move(point), resume, passed_over};

  const JobSpec& saved = point->manifest.job();
  if (!asked.train().has_global_batch()) {
    // Its default follows the number of data ranks; going on means going on with the same batches.
    asked.mutable_train()->set_global_batch(saved.train().global_batch());
    job = ResolveForRanks(runtime, asked);
    if (!job.ok()) return job.status();
  }
  std::vector<std::string> changes;
  if (absl::Status s = CheckResumable(saved, *job, &changes); !s.ok()) return s;
  return Start{*std::move(job), *std::move(point), resume, passed_over, std::move(changes)};
}

void Introduce(Runtime& runtime, Trainer& trainer, const TokenDataset& train,
               absl::string_view device, double peak_flops) {
  const JobSpec& job = trainer.job();
  int64_t parameters = 0;
  for (const ModelParameter& parameter : trainer.model_parameters())
    parameters += parameter.shape.elements();
  Say(runtime,
      absl::StrFormat(
          "%s: %s, %d layers of %d, %.2f M parameters; %s; device: %s; threads per rank: %d",
          job.name(), ModelSpec::Residual_Name(job.model().residual()), job.model().layers(),
          job.model().hidden(), static_cast<double>(parameters) / 1e6,
          trainer.grid().shape().ToString(), device,
          ThreadsPerRank(job.runtime(), runtime.local_size())));
  const int64_t samples = job.train().steps() * job.train().global_batch();
  Say(runtime,
      absl::StrFormat("data: %d training tokens, %.2f epochs in %d steps of %d sequences of %d",
                      train.tokens(), train.Epochs(samples), job.train().steps(),
                      job.train().global_batch(), job.model().sequence()));
  // Ranks at the same place of their pipelines plan alike.
  const std::vector<std::string> plans = GatherTexts(runtime.world(), trainer.memory().ToString());
  const int pipeline = trainer.grid().shape().pipeline;
  for (int place = 0; place < pipeline; ++place) {
    const int rank = trainer.grid().shape().RankOf({.pipeline = place});
    const std::string whose = pipeline == 1 ? "" : absl::StrFormat(" (pipeline rank %d)", place);
    Say(runtime, absl::StrFormat("memory per rank%s: %s", whose, plans[static_cast<size_t>(rank)]));
  }
  const std::string schedule =
      pipeline == 1 ? ""
                    : absl::StrFormat("schedule: %s, bubble %.1f %%, ",
                                      ParallelSpec::Schedule_Name(job.parallel().schedule()),
                                      100 * trainer.schedule().bubble);
  Say(runtime, absl::StrFormat("%smicro-batches: %d; measured peak %.1f GFLOP/s", schedule,
                               trainer.batch_shape().microbatches, peak_flops / 1e9));
}

// FLOP/s of all ranks' devices together, measured at the same time, as they will work, in the type
// of the job's activations.
double PeakFlops(Runtime& runtime, Device& device, const JobSpec& job) {
  // Half of the extent is a little slower on a CPU, and takes an eighth of the time.
  const int64_t extent = device.host_memory() ? PeakExtent(device) / 2 : PeakExtent(device);
  runtime.world().Barrier();
  const DType dtype = ActivationType(job.train().precision());
  return AllReduceValue(runtime.world(), MeasurePeakFlops(device, extent, dtype), Reduction::kSum);
}

// Names the field.
absl::Status OfInitialWeights(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("train.initial_weights: ", status.message()));
}

// Weights from the checkpoint, from train.initial_weights or from the seed.
absl::Status FillWeights(Runtime& runtime, Trainer& trainer, Device& device, const Start& start) {
  if (!start.point.fresh()) {
    return LoadInto(trainer, runtime.world(), device, start.point.step_directory);
  }
  const std::string& path = start.job.train().initial_weights();
  if (path.empty()) {
    trainer.InitializeWeights();
    return absl::OkStatus();
  }
  return AgreeOnStatus(runtime.world(), OfInitialWeights(LoadInitialWeights(
                                            path, ModelTensors(trainer.model_parameters()),
                                            trainer.WeightPieces(), device)));
}

// A directory of the job, with the files that ReplaceFile will write there.
struct JobDirectory {
  const char* field;
  std::string path;
  std::vector<std::string> files;

  absl::Status CannotBeUsed(const absl::Status& why) const {
    const std::string text = absl::StrCat(field, " \"", path, "\": ", why.message());
    if (absl::IsUnavailable(why)) {
      return absl::UnavailableError(absl::StrCat(
          text,
          ": a run uses this directory, or a file server still keeps the lock of a host that "
          "died; let it end, or name another"));
    }
    return absl::FailedPreconditionError(
        absl::StrCat(text, "; name a directory that can be written"));
  }
};

std::vector<JobDirectory> DirectoriesOf(const JobSpec& job) {
  JobDirectory metrics = {
      "metrics.directory", job.metrics().directory(), {"metrics.jsonl", "job.textproto", ".lock"}};
  if (job.metrics().profile()) metrics.files.emplace_back("profile.json");
  if (!job.metrics().trace_steps().empty()) metrics.files.emplace_back("trace.json");
  return {{"checkpoint.directory", job.checkpoint().directory(), {"latest", ".lock"}},
          std::move(metrics)};
}

// What stands in the way of writing is found before the first step, and before anything is made.
absl::Status CheckWritable(const JobDirectory& directory) {
  absl::Status status = CheckWritableDirectory(directory.path);
  for (const std::string& file : directory.files) {
    if (status.ok()) status = CheckReplaceable(absl::StrCat(directory.path, "/", file));
  }
  return status.ok() ? status : directory.CannotBeUsed(status);
}

// Makes the directory and keeps other runs out of it.
absl::StatusOr<FileLock> Take(const JobDirectory& directory) {
  constexpr std::chrono::seconds kPatience(5);  // rank 0 of a job that was killed ends within this
  absl::Status made = MakeDirectories(directory.path);
  if (!made.ok()) return directory.CannotBeUsed(made);
  absl::StatusOr<FileLock> lock = FileLock::Take(absl::StrCat(directory.path, "/.lock"), kPatience);
  return lock.ok() ? std::move(lock) : directory.CannotBeUsed(lock.status());
}

// Rank 0's part of OpenOutputs. Nothing is changed before the directories are this run's own.
absl::Status OpenFiles(const Start& start, TrainingOutputs* outputs) {
  const std::vector<JobDirectory> directories = DirectoriesOf(start.job);
  for (const JobDirectory& directory : directories) {
    if (absl::Status s = CheckWritable(directory); !s.ok()) return s;
  }
  absl::StatusOr<FileLock> lock = Take(directories[0]);
  if (!lock.ok()) return lock.status();
  outputs->locks.push_back(*std::move(lock));
  const std::string& checkpoints = start.job.checkpoint().directory();
  absl::Status chosen = CheckStillChosen(start.resume, checkpoints, start.passed_over, start.point);
  if (!chosen.ok()) return chosen;
  std::error_code error;
  if (!std::filesystem::equivalent(directories[1].path, checkpoints, error)) {
    lock = Take(directories[1]);
    if (!lock.ok()) return lock.status();
    outputs->locks.push_back(*std::move(lock));
  }
  const MetricsSpec& spec = start.job.metrics();
  absl::StatusOr<MetricsWriter> metrics =
      MetricsWriter::Open({.directory = spec.directory(),
                           .tensorboard = spec.tensorboard(),
                           .resumed_step = start.updates_done()});
  if (!metrics.ok()) return directories[1].CannotBeUsed(metrics.status());
  outputs->metrics.emplace(*std::move(metrics));
  return WriteMetricsFile(spec, "job.textproto", JobText(start.job));
}

absl::StatusOr<TrainingOutputs> OpenOutputs(Runtime& runtime, const Start& start,
                                            OpProfile& profile, const Ceilings& ceilings) {
  TrainingOutputs outputs = {.profile = profile, .ceilings = ceilings};
  absl::Status status;
  if (runtime.rank() == 0) {
    status = OpenFiles(start, &outputs);
    outputs.progress.emplace(ProgressOptions{.out = stdout,
                                             .terminal = WatchedOnTerminal(),
                                             .columns = TerminalColumns(stdout),
                                             .steps = start.job.train().steps()});
  }
  if (absl::Status s = AgreeOnStatus(runtime.world(), status); !s.ok()) return s;
  return outputs;
}

absl::StatusOr<TrainingData> OpenTrainingData(Runtime& runtime, const JobSpec& job) {
  absl::StatusOr<TokenDataset> train = OpenData(runtime, job, DataPart::kTrain);
  if (!train.ok()) return train.status();
  TrainingData data = {*std::move(train), std::nullopt};
  if (job.data().validation_size() > 0) {
    absl::StatusOr<TokenDataset> validation = OpenData(runtime, job, DataPart::kValidation);
    if (!validation.ok()) return validation.status();
    data.validation.emplace(*std::move(validation));
  }
  return data;
}

// What a run reads and computes with.
struct Session {
  TrainingData data;
  std::unique_ptr<OpProfile> profile;  // of the device; filled where the job asks for it
  double peak_flops = 0;               // of all ranks' devices
  Ceilings ceilings;                   // for the profile
  std::unique_ptr<Device> device;
  std::unique_ptr<Trainer> trainer;
};

// Of all ranks' devices at the same time, as they will work. Before a rank takes its memory: this
// one takes some of its own.
Ceilings CeilingsForProfile(Runtime& runtime, Device& device) {
  ActivityScope doing("measuring for the profile");
  runtime.world().Barrier();
  return MeasureCeilings(device);
}

// All of it, weights included; nothing is written. `start` outlives the session. DataLoss when the
// start's checkpoint turns out to be damaged.
absl::StatusOr<Session> OpenSession(Runtime& runtime, const Start& start) {
  absl::StatusOr<TrainingData> data = OpenTrainingData(runtime, start.job);
  if (!data.ok()) return data.status();
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(runtime, start.job);
  if (!device.ok()) return device.status();
  auto profile = std::make_unique<OpProfile>();
  if (start.job.metrics().profile()) device = MakeProfiledDevice(*std::move(device), *profile);
  auto trainer = std::make_unique<Trainer>(
      start.job, Purpose::kTraining, AccumulationSteps(start.job), **device, runtime.transport());
  absl::Status room = CheckMemory(runtime.world(), runtime.hostname(), **device, trainer->memory());
  if (!room.ok()) return room;
  if (const std::string& path = start.job.train().initial_weights();
      !path.empty() && start.point.fresh()) {
    const absl::Status fits =
        OfInitialWeights(CheckInitialWeights(path, ModelTensors(trainer->model_parameters())));
    if (absl::Status s = AgreeOnStatus(runtime.world(), fits); !s.ok()) return s;
  }
  // Their operands take memory that the trainer takes later.
  const double peak_flops = PeakFlops(runtime, **device, start.job);
  Ceilings ceilings;
  if (start.job.metrics().profile()) ceilings = CeilingsForProfile(runtime, **device);
  trainer->Materialize();
  if (absl::Status s = FillWeights(runtime, *trainer, **device, start); !s.ok()) return s;
  return Session{*std::move(data), std::move(profile), peak_flops,
                 ceilings,         *std::move(device), std::move(trainer)};
}

// A run under way fails for reasons of its own, such as a disk that is taken away: whatever the
// code that a system call's error got, the job was not wrong.
absl::Status OnceStarted(const absl::Status& status) {
  return status.ok() || absl::IsCancelled(status) ? status : absl::InternalError(status.message());
}

void SayWarnings(Runtime& runtime, const Start& start) {
  for (const std::string& warning : start.point.warnings) {
    Say(runtime, absl::StrCat("warning: ", warning));
  }
}

absl::Status Train(Runtime& runtime, const Start& start, Session& session) {
  Introduce(runtime, *session.trainer, session.data.train, session.device->name(),
            session.peak_flops);
  if (LostHostsGoUnnoticed(runtime.hosts())) {
    Say(runtime,
        "warning: mpirun will take minutes to notice a cut cable or a dead host; start it with "
        "--mca oob_tcp_keepalive_time 2 --mca oob_tcp_keepalive_intvl 1 "
        "--mca oob_tcp_keepalive_probes 3 (docs/cluster.md)");
  }
  SayWarnings(runtime, start);
  for (const std::string& change : start.changes) {
    Say(runtime, absl::StrCat("changed since the checkpoint: ", change));
  }
  if (!start.point.fresh()) {
    Say(runtime, absl::StrFormat("going on from %s, written by %s", start.point.step_directory,
                                 start.point.manifest.layout()));
  }
  absl::StatusOr<TrainingOutputs> outputs =
      OpenOutputs(runtime, start, *session.profile, session.ceilings);
  if (!outputs.ok()) return outputs.status();
  TrainingLoop loop(*session.trainer, runtime, *session.device, session.data, *outputs,
                    session.peak_flops);
  return OnceStarted(loop.Run(start.updates_done() + 1));
}

// There is nothing left to do, unless what was done is lost.
absl::Status Complete(Runtime& runtime, const Start& start) {
  ActivityScope doing("reading of a checkpoint");
  const absl::Status status = VerifyCheckpoint(start.point.step_directory, runtime.world());
  if (!status.ok()) return status;
  SayWarnings(runtime, start);
  Say(runtime, absl::StrFormat("%s is complete: %s has all of %d steps", start.job.name(),
                               start.point.step_directory, start.job.train().steps()));
  return absl::OkStatus();
}

}  // namespace

absl::Status CommandTrain(Runtime& runtime, const CommandLine& line) {
  const absl::StatusOr<JobSpec> asked = AgreeOnJob(runtime, line.positional[0], line.overrides);
  if (!asked.ok()) return asked.status();
  runtime.CatchStopSignals();
  std::vector<std::string> damaged;  // checkpoints that --resume=auto passed over
  while (true) {
    const absl::StatusOr<Start> start = DecideStart(runtime, *asked, line.resume, damaged);
    if (!start.ok()) return start.status();
    NameRank(runtime, start->job);
    absl::Status status;
    if (start->updates_done() >= start->job.train().steps()) {
      status = Complete(runtime, *start);
      if (status.ok()) return status;
    } else {
      absl::StatusOr<Session> session = OpenSession(runtime, *start);
      if (session.ok()) return Train(runtime, *start, *session);
      status = session.status();
    }
    if (line.resume != "auto" || start->point.fresh() || !absl::IsDataLoss(status)) return status;
    Say(runtime, absl::StrCat("warning: ", status.message(), "; this checkpoint is passed over"));
    damaged.push_back(start->point.step_directory);
  }
}

}  // namespace twinstream
