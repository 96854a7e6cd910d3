// Causal grouped-query attention in plain double loops: the oracle of every device's attention.
#pragma once

#include <vector>

#include "core/ops.h"

namespace twinstream::testing {

// q: [B, H, T, D]; k, v: [B, K, T, D]; out, dout: [B*T, H*D]; lse: [B, H, T].
struct AttentionInputs {
  std::vector<double> q, k, v;
};

struct AttentionOutputs {
  std::vector<double> out, lse;
};

AttentionOutputs ReferenceAttention(const AttentionShape& shape, const AttentionInputs& inputs);

// Gradients of sum(out . dout) with respect to the inputs, in their places.
AttentionInputs ReferenceAttentionBackward(const AttentionShape& shape,
                                           const AttentionInputs& inputs,
                                           const std::vector<double>& dout);

}  // namespace twinstream::testing
