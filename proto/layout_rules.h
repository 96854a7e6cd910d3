// What the parallel layout must keep, alone and with the model and the batch.
#pragma once

#include "proto/job.pb.h"
#include "proto/problems.h"

namespace twinstream {

// Whether under this schedule each rank holds several chunks of the model (parallel.virtual_stages)
// rather than one.
bool HasVirtualStages(ParallelSpec::Schedule schedule);

// job: resolved for `ranks` ranks (0: unknown).
void LayoutProblems(const JobSpec& job, int ranks, Problems* problems);
// Only where the number of data ranks is known: it was given, or follows from the ranks.
void ExpertRankProblems(const ParallelSpec& parallel, Problems* problems);

}  // namespace twinstream
