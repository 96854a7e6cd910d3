// The command line: one table of commands and flags drives parsing and help.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace twinstream {

enum class Command {
  kNone,  // only --help or --version
  kTrain,
  kValidate,
  kVerify,
  kPlan,
  kInspect,
  kExport,
  kEvaluate,
  kGenerate,
  kPrepareData,
};

// What was asked. A flag that was not given has the value it has here.
struct CommandLine {
  Command command = Command::kNone;
  bool help = false;
  bool version = false;
  std::vector<std::string> positional;  // JOB, or checkpoints
  std::vector<std::string> overrides;   // --override, in order
  std::vector<std::string> inputs;      // prepare-data: --input, split at commas, and what follows
  std::string resume = "none";          // none, auto or a checkpoint
  std::string checkpoint;
  std::string output;
  std::string format = "safetensors";
  std::string prompt;
  std::string tokenizer;
  int64_t ranks = 0;  // 0: not given
  int64_t tokens = 64;
  double temperature = 1;
  uint64_t seed = 1;
  double validation = 0;  // fraction
};

// Flags are `--name=value` or `--name value`; `--` ends them. InvalidArgument for an unknown
// command or flag (naming its nearest neighbour), a missing or unusable value, and a missing or
// superfluous argument.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv);

// Whether the command runs on all ranks of mpirun; the others are one process's work.
bool UsesMpi(Command command);

// Usage of one command, or of the program for kNone.
std::string HelpText(Command command);

}  // namespace twinstream
