// Operands: memory and contents for what operations are timed on.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device.h"
#include "core/ops.h"

namespace twinstream::benchmarks {

// Contents do not become subnormal numbers, which are slow, however often an operation runs in
// place: gradients of which that is so are zeros.
class Operands {
 public:
  explicit Operands(Device& device);  // which outlives this

  Device& device() const { return device_; }
  const Ops& ops() const { return device_.ops(); }

  // Valid until Clear. Each has been written: its pages exist.
  Tensor Zeros(DType dtype, const Shape& shape);                   // results, gradients
  Tensor Random(DType dtype, const Shape& shape);                  // float32 or bf16: normal
  Tensor Integers(const Shape& shape, int64_t step, int64_t end);  // i32: i step mod end

  int64_t bytes() const { return memory_.mark(); }  // of all tensors
  void Clear() { memory_.Rewind(0); }

 private:
  Device& device_;
  Scratch memory_;
  std::vector<float> values_;  // of which random contents are made
};

}  // namespace twinstream::benchmarks
