#include "launch/job_setup.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
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
  const std::string bytes = BroadcastText(runtime.world(), job->SerializeAsString());
  Check(job->ParseFromString(bytes), "the job did not survive its broadcast");
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

namespace {

bool EveryRankHasACard(Runtime& runtime) {
  return AllReduceValue(runtime.world(), HasUsableCard() ? 0 : 1, Reduction::kSum) == 0;
}

absl::string_view DeviceName(Runtime& runtime, const JobSpec& job) {
  switch (job.train().device()) {
    case TrainSpec::AUTO:
      return FitsCuda(job.model()) && EveryRankHasACard(runtime) ? "cuda" : "cpu";
    case TrainSpec::CPU:
      return "cpu";
    case TrainSpec::CUDA:
      return "cuda";
  }
  return "cpu";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(Runtime& runtime, const JobSpec& job) {
  absl::StatusOr<std::unique_ptr<Device>> device = MakeDevice(
      DeviceName(runtime, job), {.threads = ThreadsPerRank(job.runtime(), runtime.local_size()),
                                 .local_rank = runtime.local_rank()});
  if (absl::Status s = AgreeOnStatus(runtime.world(), device.status()); !s.ok()) return s;
  return device;
}

namespace {

constexpr double kGiB = 1 << 30;

absl::Status CheckHostMemory(Runtime& runtime, const MemoryPlan& plan) {
  // Stages differ: what each rank of this host plans is added up.
  const std::string mine = absl::StrCat(runtime.hostname(), " ", plan.total());
  double planned = 0;
  for (const std::string& text : GatherTexts(runtime.world(), mine)) {
    const std::pair<std::string, std::string> host_and_bytes = absl::StrSplit(text, ' ');
    int64_t bytes = 0;
    if (host_and_bytes.first != runtime.hostname()) continue;
    Check(absl::SimpleAtoi(host_and_bytes.second, &bytes), "a memory plan of \"%s\"", text);
    planned += static_cast<double>(bytes);
  }
  const double available = static_cast<double>(AvailableMemory());
  if (available == 0 || planned <= available) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "ranks on host %s: %d; they plan for %.1f GiB together (one of them: %s), but the host has "
      "%.1f GiB left. Use a smaller train.microbatch, a larger parallel.tensor or "
      "parallel.pipeline on more hosts, or a smaller model.",
      runtime.hostname(), runtime.local_size(), planned / kGiB, plan.ToString(), available / kGiB));
}

absl::Status CheckCardMemory(int64_t available, const MemoryPlan& plan) {
  if (plan.total() <= available) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("a rank plans for %s, but its card has %.1f GiB left. Use "
                      "parallel.recompute, a smaller train.microbatch, a larger parallel.tensor or "
                      "parallel.pipeline, or a smaller model.",
                      plan.ToString(), static_cast<double>(available) / kGiB));
}

}  // namespace

absl::Status CheckMemory(Runtime& runtime, const Device& device, const MemoryPlan& plan) {
  return AgreeOnStatus(runtime.world(), device.host_memory()
                                            ? CheckHostMemory(runtime, plan)
                                            : CheckCardMemory(device.FreeBytes(), plan));
}

void NameRank(Runtime& runtime, const JobSpec& job) {
  runtime.SetTimeout(job.runtime().timeout_seconds());
  runtime.SetPlaces(
      [shape = GridShape::From(job.parallel())](int rank) { return shape.PlaceOf(rank); });
}

}  // namespace twinstream
