// What must hold across the fields of a job before anything is started.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace twinstream {

// Every violated rule, one message each: field path, offending values, remedy. Empty: the job can
// run on `ranks` ranks (0: unknown, then nothing is said about their number). Takes the job
// resolved or not. Opens no files.
std::vector<std::string> JobProblems(const JobSpec& job, int ranks);

// Whether the kernels for CUDA cards can run the resolved job.
bool FitsCuda(const JobSpec& job);

// What text needs beyond that (generate, prepare-data); training on token files does not look at
// the tokenizer.
std::vector<std::string> TokenizerProblems(const JobSpec& job);

}  // namespace twinstream
