// What the kernels for CUDA cards cannot do, of what a job may ask for.
#pragma once

#include "proto/job.pb.h"
#include "proto/problems.h"

namespace twinstream {

// `job` is resolved.
void CudaProblems(const JobSpec& job, Problems* problems);

}  // namespace twinstream
