// A small sharded state for tests of checkpoints: ranks hold boxes of named tensors whose elements
// say which they are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "parallel/box.h"
#include "parallel/checkpoint.h"
#include "parallel/communicator.h"

namespace twinstream::testing {

enum class Holding { kOwned, kNeeded };  // needed: replicas too

// Rows, columns, both moments, a tensor that is whole on one rank, a scalar, ranks without rows.
class CheckpointState {
 public:
  CheckpointState(int rank, int ranks, Holding holding);

  std::vector<Piece>& pieces() { return pieces_; }
  // Every element <- a number of its own for this tensor, element and version.
  void Fill(int64_t version);
  // True if every element is what Fill(version) writes.
  bool Holds(int64_t version) const;

 private:
  void Add(const std::string& name, const Shape& global, const Box& box);

  std::vector<std::unique_ptr<float[]>> memory_;
  std::vector<Piece> pieces_;
};

// A request for a small job, with next_sample 4 and tokens 64 times the step.
SaveRequest RequestFor(int64_t step, int ranks);

// Saves version `version` of the state as this step, on `ranks` threads; rank 0's status, which the
// others must share.
absl::Status SaveState(const std::string& directory, int64_t step, int ranks, int64_t version);
// Loads on `ranks` threads: the first failure, or DATA_LOSS if some element is not of `version`.
absl::Status LoadState(const std::string& step_directory, int ranks, int64_t version);

}  // namespace twinstream::testing
