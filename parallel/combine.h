// Combine: sums (or maxima) of several ranks' values, in the order given: the same bits wherever
// they are computed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "core/tensor.h"
#include "parallel/communicator.h"

namespace twinstream {

// out[i] = ((addends[0][i] op addends[1][i]) op addends[2][i]) ...; `out` may be one of the
// addends. A maximum over a NaN is NaN. BF16 is combined in float32 and rounded once, at the end.
void Combine(std::byte* out, absl::Span<const std::byte* const> addends, int64_t elements,
             DType dtype, Reduction reduction);

// The sum of BF16 addends as it is before that rounding: F32. `out` is none of the addends.
void SumBFloat16(float* out, absl::Span<const std::byte* const> addends, int64_t elements);

}  // namespace twinstream
