// The program: reads the command line, runs one command, turns its Status into an exit code.
#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launch/command_export.h"
#include "launch/command_inspect.h"
#include "launch/command_line.h"
#include "launch/command_prepare_data.h"
#include "launch/command_validate.h"
#include "launch/exit_code.h"

namespace twinstream {
namespace {

constexpr char kVersion[] = "twinstream 0.1.0";

absl::Status NotBuiltYet(const char* what) {
  return absl::UnimplementedError(absl::StrCat(what, " is not built yet"));
}

absl::Status Run(const CommandLine& line) {
  switch (line.command) {
    case Command::kNone:
      break;
    case Command::kTrain:
      return NotBuiltYet("train");
    case Command::kValidate:
      return CommandValidate(line.positional[0], line.overrides, static_cast<int>(line.ranks));
    case Command::kVerify:
      return NotBuiltYet("verify");
    case Command::kPlan:
      return NotBuiltYet("plan");
    case Command::kInspect:
      return CommandInspect(line.positional);
    case Command::kExport:
      return CommandExport(line.positional[0], line.output, line.format);
    case Command::kEvaluate:
      return NotBuiltYet("evaluate");
    case Command::kGenerate:
      return NotBuiltYet("generate");
    case Command::kPrepareData:
      return CommandPrepareData(line.inputs, line.output, line.tokenizer, line.validation);
  }
  return absl::InvalidArgumentError("no command given");
}

// What needs no MPI is done once: under mpirun by the first process alone, the others have nothing
// to do. MPI has not started yet, so its launcher's environment says who is first.
bool IsFirstProcess() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* rank = std::getenv(variable)) return std::atoi(rank) == 0;
  }
  return true;
}

int Finish(const absl::Status& status) {
  if (!status.ok()) absl::FPrintF(stderr, "twinstream: %s\n", status.message());
  return ExitCodeOf(status);
}

int Main(int argc, char** argv) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(argc, argv);
  const bool uses_mpi = line.ok() && !line->help && UsesMpi(line->command);
  if (!uses_mpi && !IsFirstProcess()) return 0;
  if (!line.ok()) return Finish(line.status());
  if (line->version) std::puts(kVersion);
  if (line->help) std::fputs(HelpText(line->command).c_str(), stdout);
  if (line->version || line->help) return 0;
  return Finish(Run(*line));
}

}  // namespace
}  // namespace twinstream

int main(int argc, char** argv) { return twinstream::Main(argc, argv); }
