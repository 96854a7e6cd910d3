#include "proto/job_resume.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace twinstream {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

struct Difference {
  std::string path;  // "data.train[1].path"
  std::string from, to;
  std::string ToString() const { return absl::StrFormat("%s: %s -> %s", path, from, to); }
};

// The field's value as text; -1: not repeated.
std::string ValueText(const Message& message, const FieldDescriptor* field) {
  if (!message.GetReflection()->HasField(message, field) && !field->has_default_value()) {
    return "(unset)";
  }
  std::string text;
  google::protobuf::TextFormat::PrintFieldValueToString(message, field, -1, &text);
  return text;
}

void Compare(const Message& a, const Message& b, const std::string& prefix,
             std::vector<Difference>* out);

// Elements are compared by position; one that only one side has is compared with an empty message.
void CompareLists(const Message& a, const Message& b, const FieldDescriptor* field,
                  const std::string& path, std::vector<Difference>* out) {
  const Reflection& reflection = *a.GetReflection();
  const int in_a = reflection.FieldSize(a, field);
  const int in_b = reflection.FieldSize(b, field);
  const Message& none =
      *google::protobuf::MessageFactory::generated_factory()->GetPrototype(field->message_type());
  for (int k = 0; k < std::max(in_a, in_b); ++k) {
    Compare(k < in_a ? reflection.GetRepeatedMessage(a, field, k) : none,
            k < in_b ? reflection.GetRepeatedMessage(b, field, k) : none,
            absl::StrFormat("%s[%d].", path, k), out);
  }
}

void Compare(const Message& a, const Message& b, const std::string& prefix,
             std::vector<Difference>* out) {
  const Reflection& reflection = *a.GetReflection();
  for (int i = 0; i < a.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = a.GetDescriptor()->field(i);
    const std::string path = absl::StrCat(prefix, field->name());
    if (field->is_repeated()) {
      CompareLists(a, b, field, path, out);
    } else if (field->message_type() != nullptr) {
      Compare(reflection.GetMessage(a, field), reflection.GetMessage(b, field),
              absl::StrCat(path, "."), out);
    } else {
      const std::string from = ValueText(a, field);
      const std::string to = ValueText(b, field);
      if (from != to) out->push_back({path, from, to});
    }
  }
}

std::vector<Difference> Differences(const JobSpec& a, const JobSpec& b) {
  std::vector<Difference> differences;
  Compare(a, b, "", &differences);
  return differences;
}

bool MayChange(const std::string& path) {
  for (const char* whole :
       {"name", "parallel.", "optimizer.", "checkpoint.", "metrics.", "runtime.", "train.steps",
        "train.microbatch", "train.device", "train.deterministic", "train.initial_weights",
        "train.eval_every", "train.eval_batches", "train.on_nonfinite", "train.loss_spike."}) {
    if (absl::StartsWith(path, whole)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> JobDifferences(const JobSpec& a, const JobSpec& b) {
  std::vector<std::string> lines;
  for (const Difference& difference : Differences(a, b)) lines.push_back(difference.ToString());
  return lines;
}

absl::Status CheckResumable(const JobSpec& saved, const JobSpec& now,
                            std::vector<std::string>* changes) {
  std::vector<std::string> refused;
  for (const Difference& difference : Differences(saved, now)) {
    (MayChange(difference.path) ? *changes : refused).push_back(difference.ToString());
  }
  if (refused.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "the checkpoint belongs to another job; put back what has changed (saved -> now), or start "
      "afresh with other directories:\n%s",
      absl::StrJoin(refused, "\n")));
}

}  // namespace twinstream
