// What every command that runs a model under mpirun begins with: one job that all ranks agree on,
// its data, its device. All functions are collective over the runtime's world and return the same
// status on every rank.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/device.h"
#include "core/token_dataset.h"
#include "launch/runtime.h"
#include "launch/trainer.h"
#include "proto/job.pb.h"

namespace twinstream {

// Rank 0 reads the job file and merges the overrides; not yet resolved, since a checkpoint may have
// a say in defaults.
absl::StatusOr<JobSpec> AgreeOnJob(Runtime& runtime, const std::string& path,
                                   const std::vector<std::string>& overrides);

// The job with all defaults filled in for the runtime's ranks, or InvalidArgument with every
// problem.
absl::StatusOr<JobSpec> ResolveForRanks(Runtime& runtime, const JobSpec& job);

// data.train or data.validation, opened and searched for tokens outside the vocabulary, a share on
// each rank.
enum class DataPart { kTrain, kValidation };
TokenDatasetOptions DatasetOptions(const JobSpec& job, DataPart part);
absl::StatusOr<TokenDataset> OpenData(Runtime& runtime, const JobSpec& job, DataPart part);

// The device of train.device, with the rank's share of the host's threads or its card. AUTO is CUDA
// where every rank has a usable card and the job fits it (FitsCuda). FailedPrecondition when CUDA
// is asked for and something is missing.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(Runtime& runtime, const JobSpec& job);

// FailedPrecondition when the ranks that share a card, or in the host's memory those of this
// `host`, together plan for more memory than it has left.
absl::Status CheckMemory(Communicator& world, const std::string& host, Device& device,
                         const MemoryPlan& plan);

// Tells the runtime this rank's place and the job's patience, for messages.
void NameRank(Runtime& runtime, const JobSpec& job);

}  // namespace twinstream
