// From a person's job file and overrides to the JobSpec that is run.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace twinstream {

// Parses text-format protobuf. `file` names the text in messages ("file:line:column: ...") and,
// without directory and extension, the job when the text gives no name. InvalidArgument: every
// unknown field and enum value, or the syntax error, one a line.
absl::StatusOr<JobSpec> ParseJobSpec(const std::string& text, const std::string& file);

// Reads the job file at `path` and merges the overrides over it in order: the last value of a
// scalar wins, messages merge, a repeated field given in an override replaces the one before it.
// Mistakes of an override are placed at "--override[k]:line:column", k from 0, behind the file's.
// NotFound when the file cannot be read, else as ParseJobSpec.
absl::StatusOr<JobSpec> LoadJobSpec(const std::string& path,
                                    const std::vector<std::string>& overrides);

// Merges overrides over a job that is at hand (the one a checkpoint holds). InvalidArgument: the
// mistakes of all overrides, and the job is not to be used.
absl::Status ApplyOverrides(const std::vector<std::string>& overrides, JobSpec* job);

// Sets every field that has a default and every derived one, so that the result says all that will
// be done: name, kv_heads, head_dim, parallel.data (what `ranks` leaves; 1 when `ranks` is 0, that
// is unknown), train.global_batch (microbatch x data), directories. model.moe stays absent when
// absent. What JobProblems will object to stays as it is: missing required fields, a head_dim that
// heads do not divide, a parallel.data of 0 that the ranks do not divide into. Never fails;
// idempotent.
JobSpec ResolveJobSpec(JobSpec job, int ranks);

// Text-format protobuf, one field a line.
std::string JobText(const JobSpec& job);

}  // namespace twinstream
