// Text-format protobuf to JobSpec, with every mistake placed at its line and column.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace twinstream {

// `source` stands before line:column in messages. Unknown fields and enum values are all reported,
// each with its nearest neighbour; a syntax error ends the search. InvalidArgument, one mistake a
// line.
absl::StatusOr<JobSpec> ParseJobText(const std::string& text, const std::string& source);

}  // namespace twinstream
