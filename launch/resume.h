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
  std::string step_directory;         // empty: afresh
  Manifest manifest;                  // of step_directory
  std::vector<std::string> warnings;  // rank 0's

  bool fresh() const { return step_directory.empty(); }
};

// resume: none, auto or a checkpoint, as on the command line; directory: checkpoint.directory. With
// `none`, FailedPrecondition when it holds a checkpoint already. `auto` passes over damaged ones
// and those in `except`, and fails on one that may be whole but cannot be read. Collective: rank 0
// looks, all ranks get its answer.
absl::StatusOr<ResumePoint> ChooseResumePoint(Runtime& runtime, const std::string& resume,
                                              const std::string& directory,
                                              absl::Span<const std::string> except);

// Whether ChooseResumePoint would choose `point` again: for rank 0, once it keeps other runs out of
// the directory. UNAVAILABLE: another run has saved there since.
absl::Status CheckStillChosen(const std::string& resume, const std::string& directory,
                              absl::Span<const std::string> except, const ResumePoint& point);

// What a checkpoint argument means: a step directory, or a directory of them, and whole.
// Collective, in the same way.
absl::StatusOr<ResumePoint> OpenCheckpoint(Runtime& runtime, const std::string& checkpoint);

// Weights of the checkpoint and, for training, optimizer state, on every rank. DataLoss when what
// is stored is damaged. Collective; the same status everywhere.
absl::Status LoadInto(Trainer& trainer, Communicator& world, Device& device,
                      const std::string& step_directory);

}  // namespace twinstream
