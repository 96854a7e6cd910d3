#include "launch/command_verify.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launch/host.h"
#include "launch/job_setup.h"
#include "launch/verification.h"
#include "parallel/collectives.h"

namespace twinstream {
namespace {

constexpr int64_t kMostUpdates = 3;

// Of rank 0, where not even the least of the model fits.
absl::Status TooLarge(JobSpec job, Device& device) {
  job.mutable_model()->set_layers(int64_t{job.parallel().pipeline()} *
                                  job.parallel().virtual_stages());
  return absl::FailedPreconditionError(absl::StrFormat(
      "rank 0 has %.1f GiB left, and half of it is for the whole model by itself, which with one "
      "layer per stage plans for %s: verify with a smaller model.hidden, model.ffn or "
      "model.vocabulary, or on more memory",
      static_cast<double>(AvailableMemory(device)) / (1 << 30),
      ReferenceMemory(job, device).ToString()));
}

// Shrinks the model until it fits on rank 0. Returns what a person should know about that.
absl::StatusOr<std::string> FitReference(Runtime& runtime, Device& device, JobSpec* job) {
  const ActivityScope doing("looking for how much of the model fits");
  const int64_t fitting =
      runtime.rank() == 0 ? LayersToVerify(*job, AvailableMemory(device), device) : 0;
  const int64_t layers = static_cast<int64_t>(
      AllReduceValue(runtime.world(), static_cast<double>(fitting), Reduction::kSum));
  if (layers == 0) return TooLarge(*job, device);
  const int64_t asked = job->model().layers();
  job->mutable_model()->set_layers(layers);
  return layers == asked ? ""
                         : absl::StrFormat(
                               "The model does not fit on one rank: %d of its %d "
                               "layers are compared.\n",
                               layers, asked);
}

std::string TableOf(const std::vector<VerificationRow>& rows) {
  std::string table =
      absl::StrFormat("%-28s %12s %12s  %s\n", "", "difference", "rounding", "verdict");
  for (const VerificationRow& row : rows) {
    absl::StrAppendFormat(&table, "%-28s %12.2e %12.2e  %s%s\n", row.what, row.difference,
                          row.limit, row.ok() ? "ok" : "OUTSIDE",
                          row.note.empty() ? "" : absl::StrCat("  ", row.note));
  }
  return table;
}

}  // namespace

absl::Status CommandVerify(Runtime& runtime, const CommandLine& line) {
  absl::StatusOr<JobSpec> asked = AgreeOnJob(runtime, line.positional[0], line.overrides);
  if (!asked.ok()) return asked.status();
  absl::StatusOr<JobSpec> job = ResolveForRanks(runtime, *asked);
  if (!job.ok()) return job.status();
  NameRank(runtime, *job);
  const absl::StatusOr<TokenDataset> data = OpenData(runtime, *job, DataPart::kTrain);
  if (!data.ok()) return data.status();
  const absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(runtime, *job);
  if (!device.ok()) return device.status();
  const absl::StatusOr<std::string> note = FitReference(runtime, **device, &*job);
  if (!note.ok()) return note.status();

  Trainer trainer(*job, Purpose::kTraining, AccumulationSteps(*job), **device, runtime.transport());
  MemoryPlan plan = trainer.memory();
  if (runtime.rank() == 0) plan += ReferenceMemory(*job, **device);
  absl::Status room = CheckMemory(runtime.world(), runtime.hostname(), **device, plan);
  if (!room.ok()) {
    return absl::Status(room.code(),
                        absl::StrCat(room.message(),
                                     " Rank 0 plans for the whole model besides: verify one of "
                                     "fewer layers with --override='model { layers: ... }'."));
  }
  trainer.Materialize();
  trainer.InitializeWeights();
  const int64_t updates = std::min(kMostUpdates, job->train().steps());
  const Verification verification =
      VerifyLayout(runtime.world(), trainer, *data, **device, updates);
  if (runtime.rank() == 0) {
    absl::PrintF("%s on %s against one rank, %d updates\n%s%s", job->name(),
                 trainer.grid().shape().ToString(), verification.updates, *note,
                 TableOf(verification.rows));
  }
  if (verification.ok()) return absl::OkStatus();
  return absl::InternalError(OutsideMessage(*job, verification));
}

}  // namespace twinstream
