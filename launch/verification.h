// Verification: the first updates of a job on its layout, beside the same updates on one rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/maximum.h"
#include "core/token_dataset.h"
#include "launch/trainer.h"
#include "parallel/communicator.h"
#include "proto/job.pb.h"

namespace twinstream {

// One quantity: how far the two runs are apart, and how far rounding alone may bring them.
struct VerificationRow {
  std::string what;
  double limit = 0, difference = 0;
  std::string note;  // the tensor or box that is furthest off, the first update that is not ok
  bool ok() const { return difference <= limit; }  // false for a NaN
};

struct Verification {
  std::vector<VerificationRow> rows;
  int64_t updates = 0;           // that are compared
  bool first_update_ok = false;  // and replicas are alike: what is not ok() is of later updates
  // Whether the update behind those has a loss or gradient norm that is no number on one rank
  // either.
  bool nonfinite = false;

  bool rows_ok() const;
  bool ok() const { return rows_ok() && !nonfinite; }
};

// Loss and gradient norm (relative, the largest of all updates), the worst parameter's gradient (of
// the tensor's largest element, or of a thousandth of the model's; first update), and boxes whose
// copies on several ranks differ. Collective over `world`, which spans the trainer's ranks; rank 0
// is the one that also runs the reference by itself. The trainer has its weights from train.seed
// and has done no step.
Verification VerifyLayout(Communicator& world, Trainer& trainer, const TokenDataset& data,
                          Device& device, int64_t updates);

// What the reference takes of rank 0's memory.
MemoryPlan ReferenceMemory(const JobSpec& job, Device& device);

// What a verification that is not ok() says about the job's layout, or the job.
std::string OutsideMessage(const JobSpec& job, const Verification& verification);

// The most of the job's layers that a process with this memory can hold twice, whole and as parts;
// 0: not even one per stage. Layers go first because layouts are about what is in them and between
// them. bytes 0: unknown, then all.
int64_t LayersToVerify(JobSpec job, int64_t bytes, Device& device);

}  // namespace twinstream
