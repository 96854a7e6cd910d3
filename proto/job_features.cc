#include "proto/job_features.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/generated_enum_reflection.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace twinstream {
namespace {

// Building a feature means moving its case up, or deleting its line in FeaturesNotBuilt.

bool IsBuilt(ModelSpec::Family family) {
  switch (family) {
    case ModelSpec::DECODER:
      return true;
    case ModelSpec::VISION:
    case ModelSpec::DIFFUSION:
      return false;
  }
  return false;
}

bool IsBuilt(DataSpec::Format format) {
  switch (format) {
    case DataSpec::TOKENS_U16:
    case DataSpec::TOKENS_U32:
      return true;
    case DataSpec::MEGATRON_INDEXED:
    case DataSpec::NUMPY:
      return false;
  }
  return false;
}

bool IsBuilt(TrainSpec::OnNonfinite reaction) {
  switch (reaction) {
    case TrainSpec::STOP:
      return true;
    case TrainSpec::SKIP:
    case TrainSpec::ROLLBACK:
      return false;
  }
  return false;
}

// "data.format = NUMPY is not built yet; set it to TOKENS_U16 or ..." unless the value is built.
template <typename Enum>
void RequireBuilt(const char* path, Enum value, std::vector<std::string>* problems) {
  if (IsBuilt(value)) return;
  const google::protobuf::EnumDescriptor& type = *google::protobuf::GetEnumDescriptor<Enum>();
  std::vector<std::string> built;
  for (int i = 0; i < type.value_count(); ++i) {
    if (IsBuilt(static_cast<Enum>(type.value(i)->number()))) built.push_back(type.value(i)->name());
  }
  problems->push_back(absl::StrFormat("%s = %s is not built yet; set it to %s", path,
                                      type.FindValueByNumber(value)->name(),
                                      absl::StrJoin(built, " or ")));
}

// The same for fields with one built value; value and off as they would be written in a job file.
void RequireText(const char* path, const std::string& value, const std::string& off,
                 std::vector<std::string>* problems) {
  if (value == off) return;
  problems->push_back(
      absl::StrFormat("%s = %s is not built yet; remove it or set it to %s", path, value, off));
}

// Values below `off` are out of range, which is JobProblems' to say.
void RequireNumber(const char* path, double value, double off, std::vector<std::string>* problems) {
  if (value > off) RequireText(path, absl::StrCat(value), absl::StrCat(off), problems);
}

void RequireFalse(const char* path, bool value, std::vector<std::string>* problems) {
  RequireText(path, value ? "true" : "false", "false", problems);
}

std::string Quoted(const std::string& text) { return absl::StrCat("\"", text, "\""); }

}  // namespace

std::vector<std::string> FeaturesNotBuilt(const JobSpec& job) {
  std::vector<std::string> problems;
  RequireBuilt("model.family", job.model().family(), &problems);
  RequireBuilt("data.format", job.data().format(), &problems);
  RequireText("data.tokenizer", Quoted(job.data().tokenizer()), Quoted("bytes"), &problems);
  RequireBuilt("train.on_nonfinite", job.train().on_nonfinite(), &problems);
  RequireNumber("train.loss_spike.zscore", job.train().loss_spike().zscore(), 0, &problems);
  RequireFalse("checkpoint.async", job.checkpoint().async(), &problems);
  RequireNumber("metrics.stream_stats_every",
                static_cast<double>(job.metrics().stream_stats_every()), 0, &problems);
  return problems;
}

}  // namespace twinstream
