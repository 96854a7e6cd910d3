// Roofs: the best that this machine does right now, as the yardstick for operations.
#pragma once

#include <chrono>

#include "absl/functional/function_ref.h"
#include "core/op_profile.h"
#include "tests/benchmarks/ops/operands.h"

namespace twinstream::benchmarks {

class Roofs {
 public:
  explicit Roofs(Operands& memory);  // measures in it, not yet; it outlives this

  // Measures, in memory that is clear, unless it did within the last seconds: other load on a host
  // moves the bandwidth of its memory within minutes. To be called before any figure is asked for.
  void Refresh();

  // Read and written, of an in-place update of an array larger than the last-level cache.
  double bytes_per_second() const { return bytes_per_second_; }
  // Of a product of square matrices (PeakExtent of launch/host.h). bf16: the better of its own and
  // of float32's, in which such products can always be taken.
  double flops_per_second(DType operands) const;

  bool ArithmeticBound(const OpWork& work, DType operands) const;
  double FloorSeconds(const OpWork& work, DType operands) const;

 private:
  void Measure();
  double UpdateBytesPerSecond();
  double ProductFlopsPerSecond(DType dtype);
  // Of the best of a few runs; clears the memory.
  double BestSeconds(absl::FunctionRef<void()> work);

  Operands& memory_;
  std::chrono::steady_clock::time_point measured_;
  std::chrono::duration<double> measuring_ = {};  // what that took
  double bytes_per_second_ = 0, float32_flops_per_second_ = 0, bf16_flops_per_second_ = 0;
};

}  // namespace twinstream::benchmarks
