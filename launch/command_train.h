// train JOB: the main job.
#pragma once

#include "absl/status/status.h"
#include "launch/command_line.h"
#include "launch/runtime.h"

namespace twinstream {

// Nothing is written, and no large memory taken, before job, data, checkpoint and memory plan have
// been found good.
absl::Status CommandTrain(Runtime& runtime, const CommandLine& line);

}  // namespace twinstream
