// The directory of a run's checkpoints: step_%09d per checkpoint, `latest`, and .tmp_step_%09d
// while one is written. Local to the calling rank. A directory that does not exist holds none; one
// that cannot be listed is an error of all these functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/checkpoint.pb.h"

namespace twinstream {

std::string StepName(int64_t step);  // "step_000000008"

// The step directory that `path` means: itself if it has a manifest, otherwise the one that its
// `latest` names, or itself if it is named like one. NOT_FOUND says what is missing. Says nothing
// about wholeness.
absl::StatusOr<std::string> FindCheckpoint(const std::string& path);

// The manifest of a step directory whose manifest is sound and whose shards are all there in full
// size. Digests of the tensors are left to those who read them.
absl::StatusOr<Manifest> CheckWhole(const std::string& step_directory);

// What --resume=auto goes on from.
struct NewestWhole {
  std::string step_directory;         // empty: there is none
  Manifest manifest;                  // of step_directory
  std::vector<std::string> warnings;  // one per directory that was passed over, with the reason
};
// The whole one of the highest step, of those up to the step that `latest` names before those
// beyond it: these are of a run that was wound back. Directories in `except` (those that failed to
// load) are passed over silently. An error, not a warning, when one is not damaged but cannot be
// read: by this version of the program, or for lack of permission.
absl::StatusOr<NewestWhole> FindNewestWhole(const std::string& directory,
                                            absl::Span<const std::string> except);

// Removes what saves and prunings that were cut short left behind (.tmp_step_*).
absl::Status RemoveLeftovers(const std::string& directory);

// True if the directory holds any step directory, whole or not.
absl::StatusOr<bool> HasCheckpoints(const std::string& directory);

// Removes old whole checkpoints: keeps the `keep` newest (0: all) and those whose step `keep_every`
// divides (0: none), always what `latest` names and the newest whole one. Steps beyond `latest`
// belong to a run that was wound back; they and damaged directories are left alone.
absl::Status PruneCheckpoints(const std::string& directory, int64_t keep, int64_t keep_every);

}  // namespace twinstream
