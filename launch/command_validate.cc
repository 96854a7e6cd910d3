#include "launch/command_validate.h"

#include <cstdio>
#include <limits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/device.h"
#include "core/safetensors.h"
#include "core/token_dataset.h"
#include "launch/job_setup.h"
#include "models/decoder.h"
#include "parallel/initial_weights.h"
#include "proto/job_rules.h"
#include "proto/job_spec.h"

namespace twinstream {
namespace {

void AddLines(const absl::Status& status, std::vector<std::string>* problems) {
  for (const auto& line : absl::StrSplit(status.message(), '\n', absl::SkipEmpty())) {
    problems->push_back(std::string(line));
  }
}

// Missing paths and bad weights are JobProblems' to name: they are passed over here.
void CheckDataset(TokenDatasetOptions options, std::vector<std::string>* problems) {
  std::erase_if(options.files, [](const TokenFileOptions& file) { return file.path.empty(); });
  for (TokenFileOptions& file : options.files) file.weight = 1;
  if (options.files.empty()) return;
  const absl::StatusOr<TokenDataset> dataset = TokenDataset::Open(options);
  AddLines(dataset.ok() ? dataset->CheckTokens(0, 1) : dataset.status(), problems);
}

// Whether the job says enough about its token files to read them.
bool TokensAreReadable(const JobSpec& job) {
  const int64_t largest = std::numeric_limits<int32_t>::max();
  const auto is_size = [&](int64_t value) { return value >= 1 && value <= largest; };
  const DataSpec::Format format = job.data().format();
  return is_size(job.model().sequence()) && is_size(job.model().vocabulary()) &&
         (format == DataSpec::TOKENS_U16 || format == DataSpec::TOKENS_U32);
}

// Mistakes in the files that the job names; what JobProblems says is not said again.
std::vector<std::string> FileProblems(const JobSpec& job) {
  std::vector<std::string> problems;
  if (TokensAreReadable(job)) {
    CheckDataset(DatasetOptions(job, DataPart::kTrain), &problems);
    CheckDataset(DatasetOptions(job, DataPart::kValidation), &problems);
  }
  return problems;
}

// Without a sound model there is nothing to compare the weights with.
absl::Status CheckWeights(const JobSpec& job, bool model_is_sound) {
  const std::string& path = job.train().initial_weights();
  if (path.empty()) return absl::OkStatus();
  if (!model_is_sound) return SafetensorsSource::Open(path).status();
  absl::StatusOr<std::unique_ptr<Device>> device = MakeDevice("cpu");
  if (!device.ok()) return device.status();
  return CheckInitialWeights(path, ModelTensors(ModelParameters(job.model(), **device)));
}

absl::Status Mistakes(const std::string& job_path, const std::vector<std::string>& problems) {
  return absl::InvalidArgumentError(absl::StrFormat("%s has %d %s:\n%s", job_path, problems.size(),
                                                    problems.size() == 1 ? "mistake" : "mistakes",
                                                    absl::StrJoin(problems, "\n")));
}

// `job` is resolved; `data_open`: the number of data ranks is unknown and shown as 1.
std::string Summary(const JobSpec& job, bool data_open, const TokenDataset& data) {
  const ModelSpec& model = job.model();
  const ParallelSpec& parallel = job.parallel();
  const TrainSpec& train = job.train();
  std::string text = absl::StrFormat("job %s is valid\n", job.name());
  absl::StrAppendFormat(
      &text, "model: %s, layers %d, hidden %d, heads %d (%d key/value), ffn %d, vocabulary %d\n",
      ModelSpec::Residual_Name(model.residual()), model.layers(), model.hidden(), model.heads(),
      model.kv_heads(), model.ffn(), model.vocabulary());
  absl::StrAppendFormat(&text, "layout: tensor %d, context %d, pipeline %d (%s), data %d%s\n",
                        parallel.tensor(), parallel.context(), parallel.pipeline(),
                        ParallelSpec::Schedule_Name(parallel.schedule()), parallel.data(),
                        data_open ? " (whatever is left of the ranks)" : "");
  const int64_t samples = train.steps() * train.global_batch();
  absl::StrAppendFormat(&text, "training: %d steps x %d sequences x %d tokens = %d tokens\n",
                        train.steps(), train.global_batch(), model.sequence(),
                        samples * model.sequence());
  absl::StrAppendFormat(&text, "data: %d tokens in %d windows, %.3g epochs\n", data.tokens(),
                        data.windows(), data.Epochs(samples));
  return text;
}

}  // namespace

absl::Status CommandValidate(const std::string& job_path, const std::vector<std::string>& overrides,
                             int ranks) {
  const absl::StatusOr<JobSpec> asked = LoadJobSpec(job_path, overrides);
  if (!asked.ok()) return asked.status();
  const JobSpec job = ResolveJobSpec(*asked, ranks);
  std::vector<std::string> problems = JobProblems(*asked, ranks);
  const absl::Status weights = CheckWeights(job, problems.empty());
  for (std::string& problem : FileProblems(job)) problems.push_back(std::move(problem));
  if (!weights.ok()) {
    problems.push_back(absl::StrCat("train.initial_weights: ", weights.message()));
  }
  if (!problems.empty()) return Mistakes(job_path, problems);
  const absl::StatusOr<TokenDataset> data =
      TokenDataset::Open(DatasetOptions(job, DataPart::kTrain));
  if (!data.ok()) return data.status();
  const bool data_open = ranks == 0 && asked->parallel().data() == 0;
  std::fputs(Summary(job, data_open, *data).c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace twinstream
