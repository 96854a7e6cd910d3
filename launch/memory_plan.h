// MemoryPlan: what a rank of a job allocates.
#pragma once

#include <cstdint>
#include <string>

namespace twinstream {

// Bytes on this rank, by part.
struct MemoryPlan {
  int64_t weights = 0, gradients = 0, optimizer = 0, activations = 0, scratch = 0, batch = 0;
  int64_t total() const { return weights + gradients + optimizer + activations + scratch + batch; }
  MemoryPlan& operator+=(const MemoryPlan& other);
  std::string ToString() const;  // "weights 1.5 GiB, gradients 1.5 GiB, ..., total 8.1 GiB"
};

}  // namespace twinstream
