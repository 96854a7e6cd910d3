#include "proto/job_text.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/nearest_name.h"

namespace twinstream {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::TextFormat;
using google::protobuf::io::Tokenizer;

constexpr size_t kMostMistakes = 50;  // that are listed; of any more, the number is said
constexpr int kDeepestNesting = 16;   // of braces and brackets; a job needs 3

struct Mistake {
  int line = 0, column = 0;  // from 0
  std::string message;
};

// Keeps the first errors and warnings alike: with unknown fields allowed, the parser warns of them
// and goes on.
class MistakeCollector final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    Keep({line, column, message});
  }
  void AddWarning(int line, google::protobuf::io::ColumnNumber column,
                  const std::string& message) override {
    Keep({line, column, message});
  }
  std::vector<Mistake> mistakes;
  int64_t passed_over = 0;

 private:
  void Keep(Mistake mistake) {
    if (mistakes.size() < kMostMistakes) {
      mistakes.push_back(std::move(mistake));
    } else {
      ++passed_over;
    }
  }
};

// Where in the message tree a position of the text lies.
struct Enclosure {
  std::vector<std::string> path;  // fields whose braces are open: {"model", "moe"}
  Tokenizer::Token previous;      // the last token before the position
  std::string field;              // the last identifier before the position
};

Enclosure EnclosureOf(const std::string& text, int line, int column) {
  google::protobuf::io::ArrayInputStream input(text.data(), static_cast<int>(text.size()));
  MistakeCollector ignored;
  Tokenizer tokenizer(&input, &ignored);
  tokenizer.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
  Enclosure at;
  while (tokenizer.Next()) {
    const Tokenizer::Token& token = tokenizer.current();
    if (std::tie(token.line, token.column) >= std::tie(line, column)) break;
    at.previous = token;
    if (token.type == Tokenizer::TYPE_IDENTIFIER) at.field = token.text;
    if (token.text == "{" || token.text == "<") at.path.push_back(at.field);
    if ((token.text == "}" || token.text == ">") && !at.path.empty()) at.path.pop_back();
  }
  return at;
}

// The parser recurses: a text nested without end would run out of stack. True when `text` is
// nested more than kDeepestNesting deep, and where.
bool NestedTooDeep(const std::string& text, Mistake* where) {
  google::protobuf::io::ArrayInputStream input(text.data(), static_cast<int>(text.size()));
  MistakeCollector ignored;
  Tokenizer tokenizer(&input, &ignored);
  tokenizer.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
  int depth = 0;
  while (tokenizer.Next()) {
    const Tokenizer::Token& token = tokenizer.current();
    if (token.text == "{" || token.text == "<" || token.text == "[") ++depth;
    if (token.text == "}" || token.text == ">" || token.text == "]") --depth;
    if (depth <= kDeepestNesting) continue;
    *where = {token.line, token.column,
              absl::StrFormat("nested more than %d deep; no field of a job is", kDeepestNesting)};
    return true;
  }
  return false;
}

// The message type at a path of field names; null when the path leads through an unknown field.
const Descriptor* MessageAt(const std::vector<std::string>& path) {
  const Descriptor* message = JobSpec::descriptor();
  for (const std::string& name : path) {
    const FieldDescriptor* field = message->FindFieldByName(name);
    message = field == nullptr ? nullptr : field->message_type();
    if (message == nullptr) return nullptr;
  }
  return message;
}

std::vector<std::string> FieldNames(const Descriptor& message) {
  std::vector<std::string> names;
  for (int i = 0; i < message.field_count(); ++i) names.push_back(message.field(i)->name());
  return names;
}

std::vector<std::string> ValueNames(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) names.push_back(type.value(i)->name());
  return names;
}

// The parser's sentences that are explained here, each reported at the token behind its cause:
//   Message type "twinstream.ModelSpec" has no field named "lyers".
//   Unknown enumeration value of "BIG" for field "residual".
//   Non-repeated field "steps" is specified multiple times.
bool IsUnknownField(absl::string_view message) {
  return absl::StrContains(message, "has no field named \"");
}
bool IsUnknownValue(absl::string_view message) {
  return absl::StartsWith(message, "Unknown enumeration value of \"");
}
bool IsDuplicate(absl::string_view message) {
  return absl::StartsWith(message, "Non-repeated field \"");
}

std::string UnknownFieldMessage(const std::string& name, const std::vector<std::string>& path,
                                const Descriptor& message) {
  return absl::StrFormat("no field \"%s\" in %s; did you mean \"%s\"?", name,
                         path.empty() ? "the job" : absl::StrJoin(path, "."),
                         NearestName(name, FieldNames(message)));
}

std::string UnknownValueMessage(const std::string& value, const std::vector<std::string>& path,
                                const FieldDescriptor& field) {
  const std::vector<std::string> values = ValueNames(*field.enum_type());
  return absl::StrFormat("no value \"%s\" of %s; did you mean \"%s\"? It knows %s", value,
                         absl::StrJoin(path, "."), NearestName(value, values),
                         absl::StrJoin(values, ", "));
}

// Moves the mistake to its cause and says it in terms of the job.
void Explain(const std::string& text, Mistake* mistake) {
  const bool unknown_field = IsUnknownField(mistake->message);
  const bool unknown_value = IsUnknownValue(mistake->message);
  Enclosure at = EnclosureOf(text, mistake->line, mistake->column);
  if (!unknown_field && !unknown_value && !IsDuplicate(mistake->message)) {
    if (at.previous.text != ":" && at.previous.text != "-") return;
    at.path.push_back(at.field);  // a value that does not fit its field
    mistake->message = absl::StrCat(absl::StrJoin(at.path, "."), ": ", mistake->message);
    return;
  }
  mistake->line = at.previous.line;
  mistake->column = at.previous.column;
  const Descriptor* message = MessageAt(at.path);
  const std::vector<std::string> quoted = absl::StrSplit(mistake->message, '"');
  if (message == nullptr || quoted.size() < 4) return;
  if (unknown_field) {
    mistake->message = UnknownFieldMessage(quoted[3], at.path, *message);
  } else if (const FieldDescriptor* field = message->FindFieldByName(quoted[3]);
             unknown_value && field != nullptr && field->enum_type() != nullptr) {
    at.path.push_back(quoted[3]);
    mistake->message = UnknownValueMessage(quoted[1], at.path, *field);
  }
}

// Offset in the text of a tokenizer's position (a tab leads to the next multiple of 8 columns).
size_t OffsetOf(const std::string& text, int line, int column) {
  size_t offset = 0;
  for (int i = 0; i < line; ++i) offset = text.find('\n', offset) + 1;
  for (int at = 0; at < column && offset < text.size(); ++offset) {
    at = text[offset] == '\t' ? (at / 8 + 1) * 8 : at + 1;
  }
  return offset;
}

// Puts `1`, a value that every enum has, in place of the explained mistake's word without moving
// anything else, so that parsing can go on to the next mistake. False when the word is not there.
bool ReplaceValue(const Mistake& mistake, std::string* text) {
  const std::vector<std::string> quoted = absl::StrSplit(mistake.message, '"');
  const size_t offset = OffsetOf(*text, mistake.line, mistake.column);
  const size_t length = quoted.size() < 2 ? 0 : quoted[1].size();
  if (length == 0 || text->compare(offset, length, quoted[1]) != 0) return false;
  text->replace(offset, length, length, ' ');
  (*text)[offset] = '1';
  return true;
}

absl::Status MistakesStatus(const std::string& source, std::vector<Mistake> mistakes,
                            int64_t passed_over) {
  std::stable_sort(mistakes.begin(), mistakes.end(), [](const Mistake& a, const Mistake& b) {
    return std::tie(a.line, a.column) < std::tie(b.line, b.column);
  });
  std::string text = absl::StrJoin(mistakes, "\n", [&](std::string* out, const Mistake& mistake) {
    absl::StrAppend(out, source, ":", mistake.line + 1, ":", mistake.column + 1, ": ",
                    mistake.message);
  });
  if (passed_over > 0) absl::StrAppend(&text, "\nand ", passed_over, " more mistakes");
  return absl::InvalidArgumentError(text);
}

}  // namespace

absl::StatusOr<JobSpec> ParseJobText(const std::string& text, const std::string& source) {
  if (Mistake deep; NestedTooDeep(text, &deep)) return MistakesStatus(source, {deep}, 0);
  std::string rest = text;
  std::vector<Mistake> unknown_values;
  for (;;) {
    JobSpec job;
    MistakeCollector collector;
    TextFormat::Parser parser;
    parser.RecordErrorsTo(&collector);
    parser.AllowUnknownField(true);
    const bool parsed = parser.ParseFromString(rest, &job);
    std::vector<Mistake> mistakes = std::move(collector.mistakes);
    if (parsed && mistakes.empty() && unknown_values.empty()) return job;
    const bool stopped_at_value =
        !parsed && !mistakes.empty() && IsUnknownValue(mistakes.back().message);
    for (Mistake& mistake : mistakes) Explain(text, &mistake);
    if (stopped_at_value && ReplaceValue(mistakes.back(), &rest)) {
      unknown_values.push_back(mistakes.back());
      continue;
    }
    mistakes.insert(mistakes.end(), unknown_values.begin(), unknown_values.end());
    return MistakesStatus(source, std::move(mistakes), collector.passed_over);
  }
}

}  // namespace twinstream
