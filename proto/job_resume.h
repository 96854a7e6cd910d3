// Which parts of a job may change between the run that wrote a checkpoint and the one that goes on
// from it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace twinstream {

// One line per differing field, in the order of job.proto: "train.steps: 8 -> 16". An unset field
// has its default; one without a default shows as "(unset)". Paths are compared as written.
std::vector<std::string> JobDifferences(const JobSpec& a, const JobSpec& b);

// Both jobs resolved. May change, each change being appended to `changes` as a line of
// JobDifferences: name, parallel, optimizer, checkpoint, metrics, runtime, and of train: steps,
// microbatch, device, deterministic, initial_weights, eval_every, eval_batches, on_nonfinite,
// loss_spike. FailedPrecondition, naming every field concerned, when anything else differs: model,
// data, and global_batch, seed, z_loss, precision of train, without which it is not the same run.
// A job that leaves global_batch to the default should take the saved one before it is resolved,
// since the default follows the number of data ranks.
absl::Status CheckResumable(const JobSpec& saved, const JobSpec& now,
                            std::vector<std::string>* changes);

}  // namespace twinstream
