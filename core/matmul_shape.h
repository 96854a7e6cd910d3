// What every device's products (Ops::Matmul, core/ops.h) ask of their operands first.
#pragma once

#include <cstdint>

#include "core/ops.h"

namespace twinstream {

struct MatmulShape {
  int64_t M = 0, N = 0, K = 0;
};

// Of out [M, N] and, as multiplied, a [M, K] and b [K, N]. Dies unless all three are matrices of
// float32 or bf16 that fit each other.
MatmulShape CheckedMatmul(Tensor out, Tensor a, Tensor b, const MatmulOptions& options);

}  // namespace twinstream
