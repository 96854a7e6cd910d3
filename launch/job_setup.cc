#include "launch/job_setup.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/text_format.h"
#include "launch/host.h"
#include "parallel/collectives.h"
#include "proto/job_rules.h"
#include "proto/job_spec.h"

namespace twinstream {

absl::StatusOr<JobSpec> AgreeOnJob(Runtime& runtime, const std::string& path,
                                   const std::vector<std::string>& overrides) {
  absl::StatusOr<JobSpec> job = JobSpec();
  if (runtime.rank() == 0) job = LoadJobSpec(path, overrides);
  if (absl::Status s = AgreeOnStatus(runtime.world(), job.status()); !s.ok()) return s;
  const std::string text = BroadcastText(runtime.world(), runtime.rank() == 0 ? JobText(*job) : "");
  Check(google::protobuf::TextFormat::ParseFromString(text, &*job),
        "the job did not survive its broadcast");
  return job;
}

absl::StatusOr<JobSpec> ResolveForRanks(Runtime& runtime, const JobSpec& job) {
  const JobSpec resolved = ResolveJobSpec(job, runtime.size());
  const std::vector<std::string> problems = JobProblems(resolved, runtime.size());
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
  return resolved;
}

TokenDatasetOptions DatasetOptions(const JobSpec& job, DataPart part) {
  const DataSpec& data = job.data();
  const bool train = part == DataPart::kTrain;
  TokenDatasetOptions options = {.name = train ? "data.train" : "data.validation",
                                 .bytes_per_token = data.format() == DataSpec::TOKENS_U32 ? 4 : 2,
                                 .sequence = job.model().sequence(),
                                 .vocabulary = job.model().vocabulary(),
                                 // Validation windows are always taken in order, each once.
                                 .order = train && data.order() == DataSpec::SHUFFLED
                                              ? TokenOrder::kShuffled
                                              : TokenOrder::kSequential,
                                 .seed = job.train().seed()};
  for (const TokenFile& file : train ? data.train() : data.validation()) {
    options.files.push_back({.path = file.path(), .weight = file.weight()});
  }
  return options;
}

absl::StatusOr<TokenDataset> OpenData(Runtime& runtime, const JobSpec& job, DataPart part) {
  absl::StatusOr<TokenDataset> dataset = TokenDataset::Open(DatasetOptions(job, part));
  absl::Status status = dataset.status();
  if (status.ok()) status = dataset->CheckTokens(runtime.rank(), runtime.size());
  if (absl::Status s = AgreeOnStatus(runtime.world(), status); !s.ok()) return s;
  return dataset;
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(Runtime& runtime, const JobSpec& job) {
  absl::StatusOr<std::unique_ptr<Device>> device =
      MakeDevice("cpu", ThreadsPerRank(job.runtime(), runtime.local_size()));
  if (absl::Status s = AgreeOnStatus(runtime.world(), device.status()); !s.ok()) return s;
  return device;
}

absl::Status CheckHostMemory(Runtime& runtime, const MemoryPlan& plan) {
  const double here = static_cast<double>(plan.total()) * runtime.local_size();
  const int64_t available = AvailableMemory();
  absl::Status status;
  if (available > 0 && here > static_cast<double>(available)) {
    status = absl::FailedPreconditionError(absl::StrFormat(
        "the %d ranks on host %s plan for %.1f GiB each (%s), but the host has %.1f GiB left. Use "
        "a smaller "
        "train.microbatch, a larger parallel.tensor or parallel.pipeline on more hosts, or a "
        "smaller model.",
        runtime.local_size(), runtime.hostname(), static_cast<double>(plan.total()) / (1LL << 30),
        plan.ToString(), static_cast<double>(available) / (1LL << 30)));
  }
  return AgreeOnStatus(runtime.world(), status);
}

void NameRank(Runtime& runtime, const JobSpec& job) {
  const GridCoordinates at = GridShape::From(job.parallel()).At(runtime.rank());
  runtime.SetTimeout(job.runtime().timeout_seconds());
  runtime.SetSelf(absl::StrFormat("stage %d, tensor %d, data %d", at.pipeline, at.tensor, at.data));
}

}  // namespace twinstream
