// evaluate JOB --checkpoint=CHECKPOINT: the loss over all validation windows.
#pragma once

#include "absl/status/status.h"
#include "launch/command_line.h"
#include "launch/runtime.h"

namespace twinstream {

// Prints validation_loss=... validation_perplexity=... tokens=... on rank 0.
absl::Status CommandEvaluate(Runtime& runtime, const CommandLine& line);

}  // namespace twinstream
