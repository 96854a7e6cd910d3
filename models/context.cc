#include "models/context.h"

namespace twinstream {

SequenceShard ModelContext::shard() const {
  if (context_ranks == nullptr) return {.sequence = model.sequence()};
  return {
      .sequence = model.sequence(), .ranks = context_ranks->size(), .rank = context_ranks->rank()};
}

DType ActivationType(TrainSpec::Precision precision) {
  switch (precision) {
    case TrainSpec::FP32:
      return DType::kF32;
    case TrainSpec::BF16:
      return DType::kBF16;
  }
  Die("unknown precision");
}

Parameter& DeclareVector(ModelContext& context, const std::string& name, int64_t extent,
                         bool partial_gradient) {
  const Shape shape = {extent};
  return context.parameters.Declare(
      {.name = name,
       .global = shape,
       .boxes = {{Box::Whole(shape), context.region.rank() == 0}},
       .decay = WeightDecay::kVector,
       .sum_over_tensor = partial_gradient && context.region.size() > 1});
}

}  // namespace twinstream
