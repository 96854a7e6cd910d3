// Sizes and floating-point operations of a model, from its resolved spec alone (kv_heads and
// head_dim filled in): for utilisation, plans and the partition. Matrices only: norm weights (under
// 0.1 %) are left out; the exact count comes from the declared parameters.
#pragma once

#include <cstdint>

#include "proto/job.pb.h"

namespace twinstream {

// Elements of all matrices of the model; a tied head is the embedding, counted once.
int64_t MatrixParameters(const ModelSpec& model);
// Those that one token meets: top_k of the experts instead of all.
int64_t ActiveMatrixParameters(const ModelSpec& model);

// Multiplications and additions of one token's forward pass. Attention counts the whole T x T
// square, as is the custom, although half of it is masked.
double LayerForwardFlops(const ModelSpec& model);
double HeadForwardFlops(const ModelSpec& model);

// 6 x (active matrix parameters, head included, embedding lookup not) + 12 L d_attn T, where d_attn
// = heads x head_dim: forward and backward, recomputation not counted.
double TrainingFlopsPerToken(const ModelSpec& model);

}  // namespace twinstream
