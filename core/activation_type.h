// Kernels are templates over the type of their activations, float or BFloat16, chosen once per
// operation from the tensors.
#pragma once

#include <type_traits>

#include "core/tensor.h"

namespace twinstream {

// f(std::type_identity<T>()) for the T that a tensor of activations holds.
template <class F>
auto WithActivationType(DType dtype, F f) {
  switch (dtype) {
    case DType::kF32:
      return f(std::type_identity<float>());
    case DType::kBF16:
      return f(std::type_identity<BFloat16>());
    case DType::kF64:
    case DType::kI32:
      break;
  }
  Die("activations are float32 or bfloat16");
}

}  // namespace twinstream
