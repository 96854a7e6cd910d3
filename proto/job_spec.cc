#include "proto/job_spec.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/job_text.h"

namespace twinstream {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kLargestJobFile = size_t{1} << 20;

// No more than the limit is read, so that a device or a wrong file cannot take all memory.
absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::NotFoundError(absl::StrFormat("%s is a directory; name a job file", path));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(kLargestJobFile + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.eof() && !file) {
    return absl::NotFoundError(
        absl::StrFormat("cannot read the job file %s: %s", path, std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kLargestJobFile) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is larger than %d bytes; name a job file, which is a page of text",
                        path, kLargestJobFile));
  }
  constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";  // some editors begin UTF-8 with it
  if (absl::StartsWith(text, kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  return text;
}

// Clears in `job` every repeated field that `override_job` gives.
void ClearReplacedLists(const Message& override_job, Message* job) {
  const Reflection& reflection = *job->GetReflection();
  std::vector<const FieldDescriptor*> given;
  reflection.ListFields(override_job, &given);
  for (const FieldDescriptor* field : given) {
    if (field->is_repeated()) {
      reflection.ClearField(job, field);
    } else if (field->message_type() != nullptr) {
      ClearReplacedLists(reflection.GetMessage(override_job, field),
                         reflection.MutableMessage(job, field));
    }
  }
}

// Makes the value that the getter gives an explicit one.
void SetToCurrentValue(Message* message, const FieldDescriptor* field) {
  const Reflection& reflection = *message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(message, field, reflection.GetInt32(*message, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.SetInt64(message, field, reflection.GetInt64(*message, field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetUInt32(message, field, reflection.GetUInt32(*message, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.SetUInt64(message, field, reflection.GetUInt64(*message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.SetDouble(message, field, reflection.GetDouble(*message, field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.SetFloat(message, field, reflection.GetFloat(*message, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(message, field, reflection.GetBool(*message, field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.SetEnumValue(message, field, reflection.GetEnumValue(*message, field));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(message, field, reflection.GetString(*message, field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return;
  }
}

// Sets every unset field with a default, at any depth. Text without one is empty; numbers without
// one are required or derived and stay unset. model.moe alone means something by being absent.
void FillDefaults(Message* message) {
  const Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message->GetDescriptor()->field(i);
    const bool text = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    if (field->is_repeated()) {
      for (int k = 0; k < reflection.FieldSize(*message, field); ++k) {
        FillDefaults(reflection.MutableRepeatedMessage(message, field, k));
      }
    } else if (field->message_type() == MoeSpec::descriptor() &&
               !reflection.HasField(*message, field)) {
      continue;
    } else if (field->message_type() != nullptr) {
      FillDefaults(reflection.MutableMessage(message, field));
    } else if (!reflection.HasField(*message, field) && (field->has_default_value() || text)) {
      SetToCurrentValue(message, field);
    }
  }
}

// What the other axes leave of the ranks; 0 when they do not divide them.
int DataRanks(const ParallelSpec& parallel, int ranks) {
  if (parallel.data() != 0) return parallel.data();
  if (ranks == 0) return 1;
  int left = ranks;
  for (const int extent : {parallel.tensor(), parallel.pipeline(), parallel.context()}) {
    if (extent < 1 || left % extent != 0) return 0;
    left /= extent;
  }
  return left;
}

void DeriveModel(ModelSpec* model) {
  if (!model->has_kv_heads() && model->has_heads()) model->set_kv_heads(model->heads());
  if (!model->has_head_dim() && model->heads() > 0 && model->hidden() % model->heads() == 0) {
    model->set_head_dim(model->hidden() / model->heads());
  }
}

void DeriveGlobalBatch(int data_ranks, TrainSpec* train) {
  int64_t batch = 0;
  if (train->has_global_batch() || data_ranks == 0 ||
      __builtin_mul_overflow(train->microbatch(), int64_t{data_ranks}, &batch)) {
    return;
  }
  train->set_global_batch(batch);
}

void SetDirectories(JobSpec* job) {
  const std::string run = absl::StrCat("runs/", job->name());
  if (job->metrics().directory().empty()) job->mutable_metrics()->set_directory(run);
  if (job->checkpoint().directory().empty()) {
    job->mutable_checkpoint()->set_directory(absl::StrCat(run, "/checkpoints"));
  }
}

}  // namespace

absl::StatusOr<JobSpec> ParseJobSpec(const std::string& text, const std::string& file) {
  absl::StatusOr<JobSpec> job = ParseJobText(text, file);
  if (job.ok() && job->name().empty()) job->set_name(std::filesystem::path(file).stem().string());
  return job;
}

absl::StatusOr<JobSpec> LoadJobSpec(const std::string& path,
                                    const std::vector<std::string>& overrides) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<JobSpec> job = ParseJobSpec(*text, path);
  JobSpec unread;  // stands for a file with mistakes, so that those of the overrides are found too
  const absl::Status merged = ApplyOverrides(overrides, job.ok() ? &*job : &unread);
  if (merged.ok()) return job;
  if (job.ok()) return merged;
  return absl::InvalidArgumentError(absl::StrCat(job.status().message(), "\n", merged.message()));
}

absl::Status ApplyOverrides(const std::vector<std::string>& overrides, JobSpec* job) {
  std::vector<std::string> mistakes;
  for (size_t k = 0; k < overrides.size(); ++k) {
    const absl::StatusOr<JobSpec> change =
        ParseJobText(overrides[k], absl::StrFormat("--override[%d]", k));
    if (!change.ok()) {
      mistakes.emplace_back(change.status().message());
      continue;
    }
    ClearReplacedLists(*change, job);
    job->MergeFrom(*change);
  }
  if (mistakes.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n"));
}

JobSpec ResolveJobSpec(JobSpec job, int ranks) {
  FillDefaults(&job);
  if (job.name().empty()) job.set_name("job");
  DeriveModel(job.mutable_model());
  const int data_ranks = DataRanks(job.parallel(), ranks);
  job.mutable_parallel()->set_data(data_ranks);
  DeriveGlobalBatch(data_ranks, job.mutable_train());
  SetDirectories(&job);
  return job;
}

std::string JobText(const JobSpec& job) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(job, &text);
  return text;
}

}  // namespace twinstream
