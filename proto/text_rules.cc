#include "proto/text_rules.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace twinstream {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

void CheckText(const std::string& path, const std::string& text,
               std::vector<std::string>* problems) {
  if (!std::any_of(text.begin(), text.end(), absl::ascii_iscntrl)) return;
  problems->push_back(absl::StrFormat("%s = \"%s\" has control characters; leave them out", path,
                                      absl::CHexEscape(text)));
}

// Every text of the message, at any depth; `prefix` ends in a dot or is empty.
void CheckTexts(const Message& message, const std::string& prefix,
                std::vector<std::string>* problems) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> set;
  reflection.ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    const std::string path = prefix + field->name();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      CheckText(path, reflection.GetString(message, field), problems);
    } else if (field->is_repeated()) {
      for (int k = 0; k < reflection.FieldSize(message, field); ++k) {
        CheckTexts(reflection.GetRepeatedMessage(message, field, k),
                   absl::StrCat(path, "[", k, "]."), problems);
      }
    } else if (field->message_type() != nullptr) {
      CheckTexts(reflection.GetMessage(message, field), path + ".", problems);
    }
  }
}

// A text of which directories are made.
void CheckLength(absl::string_view path, const std::string& text,
                 std::vector<std::string>* problems) {
  constexpr size_t kLongestPart = 255;  // NAME_MAX of every usual file system
  for (const absl::string_view part : absl::StrSplit(text, '/')) {
    if (part.size() <= kLongestPart) continue;
    problems->push_back(absl::StrFormat(
        "%s has a part of %d characters (\"%s...\"); a directory's name has at most "
        "%d: shorten it",
        path, part.size(), absl::CHexEscape(part.substr(0, 20)), kLongestPart));
  }
}

struct NamedDirectory {
  const char* field;
  const std::string& path;
};

// `inner` may lie in `outer`, but not where the run puts something: under one of the names, which
// end in * if more may follow.
void CheckPlace(const NamedDirectory& inner, const NamedDirectory& outer,
                std::initializer_list<absl::string_view> taken,
                std::vector<std::string>* problems) {
  const auto normal = [](const std::string& path) {
    std::error_code error;
    return (std::filesystem::absolute(path, error) / "").lexically_normal();
  };
  const std::filesystem::path below = normal(inner.path).lexically_relative(normal(outer.path));
  const std::string first = below.empty() ? "" : below.begin()->string();
  for (absl::string_view name : taken) {
    const bool is_taken = absl::EndsWith(name, "*")
                              ? absl::StartsWith(first, name.substr(0, name.size() - 1))
                              : first == name || first == absl::StrCat(name, ".tmp");
    if (!is_taken) continue;
    problems->push_back(absl::StrFormat(
        "%s = \"%s\" is where the run puts %s of %s = \"%s\"; name another directory", inner.field,
        absl::CHexEscape(inner.path), name, outer.field, absl::CHexEscape(outer.path)));
  }
}

}  // namespace

std::vector<std::string> TextProblems(const JobSpec& job) {
  std::vector<std::string> problems;
  CheckTexts(job, "", &problems);
  CheckLength("name", job.name(), &problems);
  CheckLength("checkpoint.directory", job.checkpoint().directory(), &problems);
  CheckLength("metrics.directory", job.metrics().directory(), &problems);
  for (const auto& part : absl::StrSplit(job.name(), '/')) {
    if (part != "." && part != "..") continue;
    problems.push_back(
        absl::StrFormat("name = \"%s\" leads out of runs/, where the run's files go; "
                        "leave out \"%s\"",
                        absl::CHexEscape(job.name()), part));
    break;
  }
  return problems;
}

std::vector<std::string> PlaceProblems(const JobSpec& job) {
  std::vector<std::string> problems;
  const NamedDirectory checkpoints = {"checkpoint.directory", job.checkpoint().directory()};
  const NamedDirectory metrics = {"metrics.directory", job.metrics().directory()};
  CheckPlace(metrics, checkpoints, {"step_*", ".tmp_step_*", "latest", ".lock"}, &problems);
  CheckPlace(checkpoints, metrics,
             {"metrics.jsonl", "job.textproto", "profile.json", "trace.json", ".lock"}, &problems);
  return problems;
}

}  // namespace twinstream
