// The job of a variant that train_benchmark times.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace twinstream::benchmarks {

struct BenchmarkModel {
  absl::string_view shape;   // a name of ModelShapes
  absl::string_view device;  // a name of TrainSpec::Device
};

// Resolved, for one rank or, where its layout asks for several, for all_ranks. variant: a JobSpec
// in text format, merged over the shape's job. InvalidArgument that names the flag or the field: a
// shape that there is not, a text that does not parse or names a device, a job with mistakes.
absl::StatusOr<JobSpec> BenchmarkJob(const BenchmarkModel& model, const std::string& variant,
                                     int all_ranks);

}  // namespace twinstream::benchmarks
