// The program's exit codes.
#pragma once

#include "absl/status/status.h"

namespace twinstream {

// 0: done. 2: the job, its data or the command line is wrong (InvalidArgument, NotFound,
// FailedPrecondition, OutOfRange) or asks for what is not built yet (Unimplemented). 3: stopped by
// a signal after saving (Cancelled). 1: anything else.
int ExitCodeOf(const absl::Status& status);

}  // namespace twinstream
