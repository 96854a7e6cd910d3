// Embedding: token ids -> the streams' first value. The vocabulary's rows are split over the tensor
// ranks.
#pragma once

#include "models/context.h"

namespace twinstream {

struct EmbeddingPlacement {
  // A tied head is on another stage than the embedding: both hold the weight, and their gradients
  // are summed.
  bool on_two_stages = false;
  bool primary = true;  // this stage's copy is the one that is saved and counted
};
// embedding.weight [V, C], this rank's rows.
Parameter& DeclareEmbedding(ModelContext& context, const EmbeddingPlacement& placement);

class Embedding {
 public:
  Embedding(ModelContext& context, Parameter& weight);
  // tokens: [N] i32. out: full [N, C]; afterwards the own rows (TensorRegion) hold the embedding.
  void Forward(Tensor tokens, Tensor out) const;
  // d_out: full [N, C], of which the own rows are given; the rest is overwritten.
  void Backward(Tensor tokens, Tensor d_out) const;

 private:
  ModelContext& context_;
  Parameter& weight_;
};

}  // namespace twinstream
