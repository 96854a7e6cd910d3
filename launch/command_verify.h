// verify JOB: proves, under mpirun, that the job's layout computes what one rank computes.
#pragma once

#include "absl/status/status.h"
#include "launch/command_line.h"
#include "launch/runtime.h"

namespace twinstream {

// Runs the job's first updates on its layout and, side by side, on rank 0 alone, and prints a table
// of their differences beside what float32 rounding explains. Both start from train.seed; a model
// too large for one rank loses layers, which is said. Internal (exit 1) when a row is outside.
absl::Status CommandVerify(Runtime& runtime, const CommandLine& line);

}  // namespace twinstream
