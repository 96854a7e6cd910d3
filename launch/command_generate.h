// generate --checkpoint=CHECKPOINT --prompt=TEXT: text from a trained model.
#pragma once

#include "absl/status/status.h"
#include "launch/command_line.h"
#include "launch/runtime.h"

namespace twinstream {

// Prints prompt and continuation, nothing else, on rank 0. The model's layout is that of the
// overrides; without any, one rank alone, and under mpirun the checkpoint's own.
absl::Status CommandGenerate(Runtime& runtime, const CommandLine& line);

}  // namespace twinstream
