// The program: reads the command line, runs one command, turns its Status into an exit code.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launch/command_evaluate.h"
#include "launch/command_export.h"
#include "launch/command_generate.h"
#include "launch/command_inspect.h"
#include "launch/command_line.h"
#include "launch/command_prepare_data.h"
#include "launch/command_train.h"
#include "launch/command_validate.h"
#include "launch/command_verify.h"
#include "launch/exit_code.h"
#include "launch/runtime.h"
#include "launch/version.h"

namespace twinstream {
namespace {

// Commands of one process.
absl::Status RunAlone(const CommandLine& line) {
  switch (line.command) {
    case Command::kValidate:
      return CommandValidate(line.positional[0], line.overrides, static_cast<int>(line.ranks));
    case Command::kPlan:
      return absl::UnimplementedError("plan is not built yet");
    case Command::kInspect:
      return CommandInspect(line.positional);
    case Command::kExport:
      return CommandExport(line.positional[0], line.output, line.format);
    case Command::kPrepareData:
      return CommandPrepareData(line.inputs, line.output, line.tokenizer, line.validation);
    case Command::kNone:
    case Command::kTrain:
    case Command::kVerify:
    case Command::kEvaluate:
    case Command::kGenerate:
      break;
  }
  return absl::InvalidArgumentError("no command given");
}

// Commands of all ranks.
absl::Status RunOnRanks(Runtime& runtime, const CommandLine& line) {
  switch (line.command) {
    case Command::kTrain:
      return CommandTrain(runtime, line);
    case Command::kVerify:
      return CommandVerify(runtime, line);
    case Command::kEvaluate:
      return CommandEvaluate(runtime, line);
    case Command::kGenerate:
      return CommandGenerate(runtime, line);
    case Command::kNone:
    case Command::kValidate:
    case Command::kPlan:
    case Command::kInspect:
    case Command::kExport:
    case Command::kPrepareData:
      break;
  }
  return absl::InternalError("not a command of all ranks");
}

// What needs no MPI is done once: under mpirun by the first process alone, the others have nothing
// to do. MPI has not started yet, so its launcher's environment says who is first.
bool IsFirstProcess() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* rank = std::getenv(variable)) return std::atoi(rank) == 0;
  }
  return true;
}

// Most commands are asked for what they print; of training, the files are what counts.
absl::Status Printed(const absl::Status& status, Command command) {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!status.ok() || written || command == Command::kTrain) return status;
  return absl::InternalError("cannot write to standard output: its disk is full or it is closed");
}

int Finish(const absl::Status& status) {
  if (!status.ok()) absl::FPrintF(stderr, "twinstream: %s\n", status.message());
  return ExitCodeOf(status);
}

// Whatever is opened next would take the place of a standard stream that is closed, and get what is
// printed to it. A stream that cannot be written fails as a closed one does.
void OccupyClosedStandardStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", O_RDONLY);
  }
}

int Main(int argc, char** argv) {
  OccupyClosedStandardStreams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file over the size limit is an error of write, as a full disk
  const absl::StatusOr<CommandLine> line = ParseCommandLine(argc, argv);
  const bool uses_mpi = line.ok() && !line->help && UsesMpi(line->command);
  if (!uses_mpi && !IsFirstProcess()) return 0;
  if (!line.ok()) return Finish(line.status());
  if (line->version) std::puts(kProgramVersion);
  if (line->help) std::fputs(HelpText(line->command).c_str(), stdout);
  if (line->version || line->help) return Finish(Printed(absl::OkStatus(), line->command));
  if (!uses_mpi) return Finish(Printed(RunAlone(*line), line->command));
  Runtime runtime(argc, argv);
  const absl::Status status = RunOnRanks(runtime, *line);
  // All ranks agree on the status: one of them says it.
  return runtime.rank() == 0 ? Finish(Printed(status, line->command)) : ExitCodeOf(status);
}

}  // namespace
}  // namespace twinstream

int main(int argc, char** argv) { return twinstream::Main(argc, argv); }
