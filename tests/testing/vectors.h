// Tensors over std::vector, and random contents for them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace twinstream::testing {

// A tensor in the vector's memory, which must hold shape.elements() values.
template <typename T>
Tensor View(std::vector<T>& values, const Shape& shape) {
  Check(static_cast<int64_t>(values.size()) == shape.elements(), "%d values for a tensor %s",
        values.size(), shape.ToString());
  return Tensor(reinterpret_cast<std::byte*>(values.data()), DTypeOf<T>::kValue, shape);
}

// Standard normal values, each of which `dtype` (float32 or bf16) holds exactly.
std::vector<float> RandomFloats(int64_t count, uint64_t seed, DType dtype = DType::kF32);

// Value `number` of others, whose magnitudes are far apart: another order of summation has other
// bits.
float FarApart(int64_t number);

// The dtypes that activations may have.
constexpr DType kActivationTypes[] = {DType::kF32, DType::kBF16};

// A float32 vector lent to an op as a tensor of an activation dtype: rounded when the loan begins;
// when it ends the vector holds what the op has left. Lent once for each tensor of a call: lending
// twice is no way to say that two tensors are the same memory.
class Lent {
 public:
  Lent(std::vector<float>& values, const Shape& shape, DType dtype);
  ~Lent();
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator Tensor() const { return tensor_; }

 private:
  std::vector<float>& values_;
  std::vector<BFloat16> narrow_;
  Tensor tensor_;
};

std::vector<double> ToDouble(const std::vector<float>& values);

}  // namespace twinstream::testing
