// Sums of float32 values that travel between cards as bf16.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"
#include "core/cuda/stream.h"

namespace twinstream {

// to <- from, to nearest.
void RoundValues(BFloat16* to, const float* from, int64_t elements, gpu::Stream stream);
// sums[i] <- addends[0][i] + addends[1][i] + ... in this order, in float32; row r of `ranks` rows
// begins at addends + r * stride.
void SumRoundedValues(float* sums, const BFloat16* addends, int ranks, int64_t stride,
                      int64_t elements, gpu::Stream stream);

}  // namespace twinstream
