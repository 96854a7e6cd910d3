#include "launch/job_data.h"

#include "core/check.h"

namespace twinstream {
namespace {

int BytesPerToken(DataSpec::Format format) {
  switch (format) {
    case DataSpec::TOKENS_U16:
      return 2;
    case DataSpec::TOKENS_U32:
      return 4;
    case DataSpec::MEGATRON_INDEXED:
    case DataSpec::NUMPY:
      break;
  }
  Die("JobProblems refuses this format");
}

TokenOrder OrderOf(DataSpec::Order order) {
  switch (order) {
    case DataSpec::SHUFFLED:
      return TokenOrder::kShuffled;
    case DataSpec::SEQUENTIAL:
      return TokenOrder::kSequential;
  }
  Die("no such order");
}

TokenDatasetOptions Options(const JobSpec& job, const char* name,
                            const google::protobuf::RepeatedPtrField<TokenFile>& files) {
  TokenDatasetOptions options;
  options.name = name;
  for (const TokenFile& file : files) options.files.push_back({file.path(), file.weight()});
  options.bytes_per_token = BytesPerToken(job.data().format());
  options.sequence = job.model().sequence();
  options.vocabulary = job.model().vocabulary();
  options.order = TokenOrder::kSequential;
  options.seed = job.train().seed();
  return options;
}

}  // namespace

TokenDatasetOptions TrainingData(const JobSpec& job) {
  TokenDatasetOptions options = Options(job, "data.train", job.data().train());
  options.order = OrderOf(job.data().order());
  return options;
}

TokenDatasetOptions ValidationData(const JobSpec& job) {
  return Options(job, "data.validation", job.data().validation());
}

}  // namespace twinstream
