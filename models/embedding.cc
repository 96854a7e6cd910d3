#include "models/embedding.h"

#include "models/initialization.h"

namespace twinstream {

Parameter& DeclareEmbedding(ModelContext& context, const EmbeddingPlacement& placement) {
  const Shape shape = {context.model.vocabulary(), context.hidden()};
  const Range rows = SplitEvenly(shape[0], context.region.size(), context.region.rank());
  return context.parameters.Declare(
      {.name = "embedding.weight",
       .global = shape,
       .boxes = {{Box::Range(shape, 0, rows.begin, rows.end), placement.primary}},
       .init_std = InitialStd(context.model, WeightRole::kEmbedding, 0),
       .decay = WeightDecay::kEmbedding,
       .sum_over_stages = placement.on_two_stages});
}

Embedding::Embedding(ModelContext& context, Parameter& weight)
    : context_(context), weight_(weight) {}

void Embedding::Forward(Tensor tokens, Tensor out) const {
  context_.ops.EmbeddingForward(out, tokens, weight_.value, weight_.spec.boxes[0].box.begin[0]);
  context_.region.Leave(out);
}

void Embedding::Backward(Tensor tokens, Tensor d_out) const {
  context_.region.LeaveBackward(d_out);
  context_.ops.EmbeddingBackward(weight_.gradient, tokens, d_out,
                                 weight_.spec.boxes[0].box.begin[0]);
}

}  // namespace twinstream
