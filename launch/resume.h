// Where a run begins: afresh, or from a checkpoint (--resume).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "launch/runtime.h"
#include "launch/trainer.h"
#include "proto/checkpoint.pb.h"

namespace twinstream {

struct ResumePoint {
  std::string step_directory;  // empty: afresh
  Manifest manifest;           // of step_directory
  std::vector<std::string> warnings;

  bool fresh() const { return step_directory.empty(); }
};

// resume: none, auto or a checkpoint, as on the command line; directory: checkpoint.directory. With
// `none`, FailedPrecondition when it holds a checkpoint already. `auto` passes over damaged ones
// and those in `except`. Collective: rank 0 looks, all ranks get its answer.
absl::StatusOr<ResumePoint> ChooseResumePoint(Runtime& runtime, const std::string& resume,
                                              const std::string& directory,
                                              absl::Span<const std::string> except);

// Weights and optimizer state of the checkpoint, on every rank. Collective; the same status
// everywhere.
absl::Status LoadInto(Trainer& trainer, Communicator& world, Device& device,
                      const std::string& step_directory);

// The step directory and manifest that a checkpoint argument means, agreed by all ranks; whole.
absl::StatusOr<ResumePoint> OpenCheckpoint(Runtime& runtime, const std::string& checkpoint);

}  // namespace twinstream
