#include "launch/job_setup.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/device_collectives.h"
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

// A host with a driver was meant to have cards: of the ranks that have none there the first one's
// reason is told.
bool EveryRankHasACard(Runtime& runtime) {
  const absl::Status card = UsableCard(runtime.local_rank());
  std::string problem;
  if (!card.ok() && !absl::IsNotFound(card)) {
    problem = absl::StrCat("rank ", runtime.rank(), " on host ", runtime.hostname(), ": ",
                           card.message());
  }
  const std::vector<std::string> problems = GatherTexts(runtime.world(), problem);
  const auto first = std::find_if(problems.begin(), problems.end(),
                                  [](const std::string& text) { return !text.empty(); });
  if (runtime.rank() == 0 && first != problems.end()) {
    absl::FPrintF(stderr, "warning: train.device = AUTO takes the CPU: %s\n", *first);
  }
  return AllReduceValue(runtime.world(), card.ok() ? 0 : 1, Reduction::kSum) == 0;
}

absl::string_view DeviceName(Runtime& runtime, const JobSpec& job) {
  switch (job.train().device()) {
    case TrainSpec::AUTO:
      return FitsCuda(job) && EveryRankHasACard(runtime) ? "cuda" : "cpu";
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
// Of a card's free memory: for the code of kernels and NCCL's buffers, which no plan counts.
constexpr int64_t kKeptOnCard = int64_t{1} << 30;

// What the ranks plan for that take their memory from the same place.
struct SharedPlan {
  std::vector<int> ranks;
  double bytes = 0;
};

// Of the ranks that call it by the same place (a name without spaces). Stages differ, so every
// rank's plan counts.
SharedPlan PlansFor(Communicator& world, absl::string_view place, const MemoryPlan& plan) {
  const std::vector<std::string> texts = GatherTexts(world, absl::StrCat(place, " ", plan.total()));
  SharedPlan shared;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const std::pair<std::string, std::string> place_and_bytes = absl::StrSplit(texts[rank], ' ');
    int64_t bytes = 0;
    if (place_and_bytes.first != place) continue;
    Check(absl::SimpleAtoi(place_and_bytes.second, &bytes), "a memory plan of \"%s\"", texts[rank]);
    shared.ranks.push_back(static_cast<int>(rank));
    shared.bytes += static_cast<double>(bytes);
  }
  return shared;
}

absl::Status CheckHostMemory(Communicator& world, const std::string& host, const MemoryPlan& plan) {
  const SharedPlan shared = PlansFor(world, host, plan);
  const double available = static_cast<double>(AvailableMemory());
  if (available == 0 || shared.bytes <= available) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "ranks on host %s: %d; they plan for %.1f GiB together (one of them: %s), but the host has "
      "%.1f GiB left. Use a smaller train.microbatch, a larger parallel.tensor or "
      "parallel.pipeline on more hosts, or a smaller model.",
      host, shared.ranks.size(), shared.bytes / kGiB, plan.ToString(), available / kGiB));
}

absl::Status CheckCardMemory(Communicator& world, const std::string& host, Device& device,
                             const MemoryPlan& plan) {
  // Without a network nobody knows one card from another: then each rank speaks for itself.
  const std::string card = device.network() == nullptr ? absl::StrCat("of-rank-", world.rank())
                                                       : std::string(device.network()->card());
  const SharedPlan shared = PlansFor(world, card, plan);
  const double available =
      static_cast<double>(std::max<int64_t>(device.FreeBytes() - kKeptOnCard, 0));
  if (shared.bytes <= available) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "card %s on host %s has %.1f GiB left, besides %.1f GiB for kernels and NCCL, but what its "
      "ranks (%s) plan for is %.1f GiB together (one of them: %s). Use fewer ranks per card, "
      "parallel.recompute, a smaller train.microbatch, a larger parallel.tensor or "
      "parallel.pipeline on more cards, or a smaller model.",
      card, host, available / kGiB, static_cast<double>(kKeptOnCard) / kGiB,
      absl::StrJoin(shared.ranks, ", "), shared.bytes / kGiB, plan.ToString()));
}

}  // namespace

absl::Status CheckMemory(Communicator& world, const std::string& host, Device& device,
                         const MemoryPlan& plan) {
  return AgreeOnStatus(world, device.host_memory() ? CheckHostMemory(world, host, plan)
                                                   : CheckCardMemory(world, host, device, plan));
}

void NameRank(Runtime& runtime, const JobSpec& job) {
  runtime.SetTimeout(job.runtime().timeout_seconds());
  runtime.SetPlaces(
      [shape = GridShape::From(job.parallel())](int rank) { return shape.PlaceOf(rank); });
}

}  // namespace twinstream
