// The job that a variant of a benchmark trains.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace twinstream::benchmarks {

struct VariantOptions {
  std::string shape;   // of ModelShapes()
  std::string device;  // a train.device, of all variants
};

// variant: a JobSpec in text format, merged over the shape's job. Resolved, for one rank where its
// layout needs no more, else for all. InvalidArgument with everything that is wrong with it.
absl::StatusOr<JobSpec> VariantJob(const std::string& variant, const VariantOptions& options,
                                   int all_ranks);

}  // namespace twinstream::benchmarks
