#include "launch/command_line.h"

#include <algorithm>
#include <limits>
#include <set>
#include <type_traits>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "proto/nearest_name.h"

namespace twinstream {
namespace {

using Text = std::string CommandLine::*;
using TextList = std::vector<std::string> CommandLine::*;  // each value is appended
using Integer = int64_t CommandLine::*;
using Seed = uint64_t CommandLine::*;
using Real = double CommandLine::*;

struct Flag {
  const char* name;
  const char* value;  // what stands for the value in help
  const char* summary;
  std::variant<Text, TextList, Integer, Seed, Real> member;
  bool required = false;
  double least = 0, most = std::numeric_limits<double>::max();  // of numbers
};

struct CommandEntry {
  Command command;
  const char* name;
  const char* arguments;
  size_t least_arguments, most_arguments;
  absl::Span<const Flag> flags;
  const char* summary;
};

// ---- The table.

constexpr double kLargestCount = 2147483647;
constexpr size_t kAny = std::numeric_limits<size_t>::max();

constexpr Flag kOverride = {"override", "TEXTPROTO",
                            "text-format protobuf merged over the job, lists replaced; repeatable",
                            &CommandLine::overrides};
constexpr Flag kSavedOverride = {
    "override", "TEXTPROTO",
    "text-format protobuf merged over the job stored in the checkpoint, lists replaced; repeatable",
    &CommandLine::overrides};
constexpr Flag kResume = {"resume", "none|auto|DIR",
                          "none (default): start afresh, refused where checkpoints are; auto: go "
                          "on from the newest whole one, if any; DIR: from that one",
                          &CommandLine::resume};
constexpr Flag kRanks = {"ranks",
                         "N",
                         "the number of ranks that the layout has to fit; default: any",
                         &CommandLine::ranks,
                         false,
                         1,
                         kLargestCount};
constexpr Flag kCheckpoint = {"checkpoint", "CHECKPOINT",
                              "a step directory, or a directory of them (then its latest)",
                              &CommandLine::checkpoint, true};

constexpr Flag kTrainFlags[] = {kOverride, kResume};
constexpr Flag kRanksFlags[] = {kRanks, kOverride};
constexpr Flag kVerifyFlags[] = {kOverride};
constexpr Flag kExportFlags[] = {
    {"output", "DIR", "where model.safetensors goes", &CommandLine::output, true},
    {"format", "safetensors|olmo", "default safetensors; olmo is not built yet",
     &CommandLine::format}};
constexpr Flag kEvaluateFlags[] = {kCheckpoint, kOverride};
constexpr Flag kGenerateFlags[] = {
    kCheckpoint,
    {"prompt", "TEXT", "text to go on from", &CommandLine::prompt, true},
    {"tokens", "N", "tokens to add, default 64; the model sees the last model.sequence of the text",
     &CommandLine::tokens, false, 0, kLargestCount},
    {"temperature", "T", "0: the likeliest token; default 1", &CommandLine::temperature},
    {"seed", "S", "of the random choices, default 1", &CommandLine::seed},
    kSavedOverride};
constexpr Flag kPrepareDataFlags[] = {
    {"input", "FILES", "in order: separated by commas, or the first here and more as arguments",
     &CommandLine::inputs, true},
    {"output", "PREFIX", "writes PREFIX.bin and PREFIX.json", &CommandLine::output, true},
    {"tokenizer", "bytes", "the only one so far", &CommandLine::tokenizer, true},
    {"validation", "FRACTION", "the last fraction goes to PREFIX.validation.bin",
     &CommandLine::validation, false, 0, 1 - 0x1p-53}};

constexpr CommandEntry kCommands[] = {
    {Command::kTrain, "train", "JOB", 1, 1, kTrainFlags,
     "train on the ranks of the job's layout: under mpirun, or alone if that is one"},
    {Command::kValidate, "validate", "JOB", 1, 1, kRanksFlags,
     "every mistake of a job and its data files at once, once it reads as a job; needs no MPI and "
     "does not look at the host (cards, memory)"},
    {Command::kVerify, "verify", "JOB", 1, 1, kVerifyFlags,
     "under mpirun: compare three updates on the job's layout with one rank's"},
    {Command::kPlan, "plan", "JOB", 1, 1, kRanksFlags,
     "memory, traffic, bubble and time before anything is run; not built yet"},
    {Command::kInspect,
     "inspect",
     "CHECKPOINT [CHECKPOINT2]",
     1,
     2,
     {},
     "what is in a checkpoint (a step directory, or a directory of them: then its latest), which "
     "layout wrote it, whether it is whole (exit code 1 if not); or two compared, with exit code 0 "
     "also when they differ"},
    {Command::kExport, "export", "CHECKPOINT", 1, 1, kExportFlags,
     "write the weights of a checkpoint (a step directory, or a directory of them: then its "
     "latest) for others to read"},
    {Command::kEvaluate, "evaluate", "JOB", 1, 1, kEvaluateFlags,
     "loss over all validation windows, on the ranks of the job's layout: under mpirun, or alone "
     "if that is one"},
    {Command::kGenerate, "generate", "", 0, 0, kGenerateFlags,
     "print a prompt and its continuation: alone on one rank whatever the checkpoint's layout, "
     "under mpirun on a multiple of its tensor x context x pipeline (with experts: x expert) "
     "ranks"},
    {Command::kPrepareData, "prepare-data", "", 0, kAny, kPrepareDataFlags,
     "turn text files into token files"},
};

// ---- Looking things up.

const CommandEntry* FindCommand(absl::string_view name) {
  const auto* found = std::find_if(std::begin(kCommands), std::end(kCommands),
                                   [&](const CommandEntry& entry) { return entry.name == name; });
  return found == std::end(kCommands) ? nullptr : found;
}

const Flag* FindFlag(const CommandEntry& entry, absl::string_view name) {
  const auto found = std::find_if(entry.flags.begin(), entry.flags.end(),
                                  [&](const Flag& flag) { return flag.name == name; });
  return found == entry.flags.end() ? nullptr : &*found;
}

absl::Status UnknownCommand(absl::string_view name) {
  std::vector<std::string> names;
  for (const CommandEntry& entry : kCommands) names.emplace_back(entry.name);
  return absl::InvalidArgumentError(
      absl::StrFormat("unknown command \"%s\"; there are %s", name, absl::StrJoin(names, ", ")));
}

absl::Status UnknownFlag(const CommandEntry& entry, absl::string_view word) {
  std::vector<std::string> names = {"--help"};
  for (const Flag& flag : entry.flags) names.push_back(absl::StrCat("--", flag.name));
  return absl::InvalidArgumentError(
      absl::StrFormat("%s has no flag %s; did you mean %s? twinstream %s --help lists them",
                      entry.name, word, NearestName(word, names), entry.name));
}

std::string Usage(const CommandEntry& entry) {
  std::string usage = absl::StrCat("twinstream ", entry.name);
  if (*entry.arguments != '\0') absl::StrAppend(&usage, " ", entry.arguments);
  for (const Flag& flag : entry.flags) {
    const std::string text = absl::StrCat("--", flag.name, "=", flag.value);
    const bool repeatable = std::holds_alternative<TextList>(flag.member);
    absl::StrAppend(&usage, " ", flag.required ? text : absl::StrCat("[", text, "]"),
                    repeatable && !flag.required ? "..." : "");
  }
  return usage;
}

// ---- Parsing.

// The value as the member's type; false when it does not read as one.
bool Read(const std::string& text, std::string* value) {
  *value = text;
  return !text.empty();
}
bool Read(const std::string& text, std::vector<std::string>* values) {
  values->push_back(text);
  return true;
}
bool Read(const std::string& text, int64_t* value) { return absl::SimpleAtoi(text, value); }
bool Read(const std::string& text, uint64_t* value) { return absl::SimpleAtoi(text, value); }
bool Read(const std::string& text, double* value) { return absl::SimpleAtod(text, value); }

bool InRange(const Flag& flag, double value) { return value >= flag.least && value <= flag.most; }

absl::Status SetFlag(const Flag& flag, const std::string& text, CommandLine* line) {
  const bool good = std::visit(
      [&](auto member) {
        auto& value = line->*member;
        if (!Read(text, &value)) return false;
        if constexpr (std::is_arithmetic_v<std::remove_reference_t<decltype(value)>>) {
          return InRange(flag, static_cast<double>(value));
        }
        return true;
      },
      flag.member);
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("--%s=%s does not read as %s (%s)", flag.name,
                                                    text, flag.value, flag.summary));
}

// Walks over the words behind the command.
class WordParser {
 public:
  WordParser(const CommandEntry& entry, absl::Span<const std::string> words, CommandLine* line)
      : entry_(entry), words_(words), line_(*line) {}

  absl::Status Parse() {
    bool flags_ended = false;
    while (next_ < words_.size()) {
      const std::string& word = words_[next_++];
      if (flags_ended || word.size() < 2 || word[0] != '-') {
        line_.positional.push_back(word);
      } else if (word == "--") {
        flags_ended = true;
      } else if (word == "--help" || word == "-h") {
        line_.help = true;
      } else if (absl::Status status = ParseFlag(word); !status.ok()) {
        return status;
      }
    }
    return line_.help ? absl::OkStatus() : CheckComplete();
  }

 private:
  absl::Status ParseFlag(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const Flag* flag = absl::StartsWith(name, "--")
                           ? FindFlag(entry_, absl::string_view(name).substr(2))
                           : nullptr;
    if (flag == nullptr) return UnknownFlag(entry_, name);
    given_.insert(flag->name);
    if (equals != std::string::npos) return SetFlag(*flag, word.substr(equals + 1), &line_);
    if (next_ == words_.size() || absl::StartsWith(words_[next_], "--")) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--%s needs a value: --%s=%s", flag->name, flag->name, flag->value));
    }
    return SetFlag(*flag, words_[next_++], &line_);
  }

  absl::Status CheckComplete() const {
    const size_t arguments = line_.positional.size();
    if (arguments < entry_.least_arguments) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s needs %s; usage: %s", entry_.name, entry_.arguments, Usage(entry_)));
    }
    if (arguments > entry_.most_arguments) {
      return absl::InvalidArgumentError(absl::StrFormat("superfluous argument \"%s\"; usage: %s",
                                                        line_.positional[entry_.most_arguments],
                                                        Usage(entry_)));
    }
    for (const Flag& flag : entry_.flags) {
      if (!flag.required || given_.count(flag.name) > 0) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("%s needs --%s=%s", entry_.name, flag.name, flag.value));
    }
    return absl::OkStatus();
  }

  const CommandEntry& entry_;
  absl::Span<const std::string> words_;
  CommandLine& line_;
  size_t next_ = 0;
  std::set<std::string> given_;
};

// `--input=a,b c`: the list is a, b, c.
absl::Status GatherInputs(CommandLine* line) {
  std::vector<std::string> inputs;
  for (const std::string& list : line->inputs) {
    for (const auto& file : absl::StrSplit(list, ',', absl::SkipEmpty())) {
      inputs.push_back(std::string(file));
    }
  }
  inputs.insert(inputs.end(), line->positional.begin(), line->positional.end());
  if (inputs.empty()) return absl::InvalidArgumentError("--input names no file");
  line->inputs = inputs;
  line->positional.clear();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv) {
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  CommandLine line;
  if (words.empty()) {
    return absl::InvalidArgumentError("no command given; twinstream --help lists the commands");
  }
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    line.help = true;
    if (words.size() == 1) return line;
    const CommandEntry* entry = FindCommand(words[1]);
    if (entry == nullptr) return UnknownCommand(words[1]);
    line.command = entry->command;
    return line;
  }
  if (words[0] == "--version") {
    line.version = true;
    return line;
  }
  const CommandEntry* entry = FindCommand(words[0]);
  if (entry == nullptr) return UnknownCommand(words[0]);
  line.command = entry->command;
  WordParser parser(*entry, absl::MakeSpan(words).subspan(1), &line);
  if (absl::Status status = parser.Parse(); !status.ok()) return status;
  if (line.command == Command::kPrepareData && !line.help) {
    if (absl::Status status = GatherInputs(&line); !status.ok()) return status;
  }
  return line;
}

bool UsesMpi(Command command) {
  switch (command) {
    case Command::kTrain:
    case Command::kVerify:
    case Command::kEvaluate:
    case Command::kGenerate:
      return true;
    case Command::kNone:
    case Command::kValidate:
    case Command::kPlan:
    case Command::kInspect:
    case Command::kExport:
    case Command::kPrepareData:
      return false;
  }
  return false;
}

std::string HelpText(Command command) {
  for (const CommandEntry& entry : kCommands) {
    if (entry.command != command) continue;
    std::string text = absl::StrFormat("%s\n\n%s\n", Usage(entry), entry.summary);
    for (const Flag& flag : entry.flags) {
      absl::StrAppendFormat(&text, "\n  --%s=%s\n      %s\n", flag.name, flag.value, flag.summary);
    }
    return text;
  }
  std::string text = "Twinstream trains two-stream transformers on many ranks.\n\n";
  for (const CommandEntry& entry : kCommands) {
    absl::StrAppendFormat(&text, "  %s\n      %s\n", Usage(entry), entry.summary);
  }
  absl::StrAppend(&text,
                  "  twinstream --help | --version | COMMAND --help\n\n"
                  "Exit codes: 0 done; 1 failed; 2 the job, its data or the command line is wrong; "
                  "3 stopped by a\nsignal after saving.\n");
  return text;
}

}  // namespace twinstream
