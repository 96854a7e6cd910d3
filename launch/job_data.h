// The token files of a job.
#pragma once

#include "core/token_dataset.h"
#include "proto/job.pb.h"

namespace twinstream {

// data.train in the job's order, seeded by train.seed. The job has no JobProblems.
TokenDatasetOptions TrainingData(const JobSpec& job);
// data.validation, always sequential.
TokenDatasetOptions ValidationData(const JobSpec& job);

}  // namespace twinstream
