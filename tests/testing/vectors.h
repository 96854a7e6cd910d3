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

// Standard normal values.
std::vector<float> RandomFloats(int64_t count, uint64_t seed);

std::vector<double> ToDouble(const std::vector<float>& values);

}  // namespace twinstream::testing
