#include "models/context.h"

namespace twinstream {

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
