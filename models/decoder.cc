#include "models/decoder.h"

#include <cmath>

#include "models/flops.h"
#include "models/partition.h"
#include "models/transformer_stage.h"

namespace twinstream {

std::vector<ModelParameter> ModelParameters(const ModelSpec& model, Device& device) {
  ParameterStore store;
  const TensorRegion region = TensorRegion::Alone();
  const ExpertRegion experts = ExpertRegion::Alone();
  ModelContext context = {.model = model,
                          .device = device,
                          .ops = device.ops(),
                          .region = region,
                          .experts = experts,
                          .parameters = store};
  const TransformerStage whole(context, {.layers = {0, model.layers()}});
  std::vector<ModelParameter> parameters;
  for (const std::unique_ptr<Parameter>& parameter : store.parameters()) {
    parameters.push_back({parameter->spec.name, parameter->spec.global});
  }
  return parameters;
}

std::vector<TensorSpec> ModelTensors(const std::vector<ModelParameter>& parameters) {
  std::vector<TensorSpec> tensors;
  for (const ModelParameter& parameter : parameters) {
    tensors.push_back({parameter.name, DType::kF32, parameter.shape});
  }
  return tensors;
}

std::vector<Range> StageLayers(const ModelSpec& model, int stages) {
  const std::vector<double> costs(static_cast<size_t>(model.layers()), LayerForwardFlops(model));
  return PartitionLayers(costs, 0, HeadForwardFlops(model), stages);
}

std::vector<float> RopeTable(const ModelSpec& model, const SequenceShard& shard) {
  const int64_t T = shard.tokens(), D = model.head_dim(), half = D / 2;
  std::vector<float> table(static_cast<size_t>(T * D));
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t j = 0; j < half; ++j) {
      const double angle =
          static_cast<double>(shard.Position(t)) *
          std::pow(model.rope_theta(), -2.0 * static_cast<double>(j) / static_cast<double>(D));
      table[static_cast<size_t>(t * D + j)] = static_cast<float>(std::cos(angle));
      table[static_cast<size_t>(t * D + half + j)] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace twinstream
