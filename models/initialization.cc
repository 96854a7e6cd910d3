#include "models/initialization.h"

#include <cmath>

#include "core/check.h"

namespace twinstream {
namespace {

bool LeavesBlock(WeightRole role) {
  return role == WeightRole::kAttentionOut || role == WeightRole::kMlpDown;
}

// Mitchell (OLMo): 1 / sqrt(fan-in), residual outputs smaller by sqrt(2 (layer + 1)).
double MitchellStd(const ModelSpec& model, WeightRole role, int64_t layer) {
  const double d = static_cast<double>(model.hidden());
  const double depth = 2.0 * static_cast<double>(layer + 1);
  switch (role) {
    case WeightRole::kEmbedding:
    case WeightRole::kHead:
    case WeightRole::kQkv:
    case WeightRole::kMlpUp:
    case WeightRole::kRouter:
      return 1.0 / std::sqrt(d);
    case WeightRole::kAttentionOut:
      return 1.0 / std::sqrt(d * depth);
    case WeightRole::kMlpDown:
      return 1.0 / std::sqrt(static_cast<double>(model.ffn()) * depth);
  }
  Die("unknown weight role");
}

double MethodStd(const ModelSpec& model, WeightRole role, int64_t layer) {
  const double std = model.init().std();
  switch (model.init().method()) {
    case InitSpec::NORMAL:
      return std;
    case InitSpec::MITCHELL:
      return MitchellStd(model, role, layer);
    case InitSpec::FULL_MEGATRON:
      return LeavesBlock(role) ? std / std::sqrt(2.0 * static_cast<double>(model.layers())) : std;
  }
  Die("unknown init method");
}

// Factor on the weights of values and MLPs: beta = (8 L)^(-1/4) with DEEP_NORM (DeepNet, arXiv
// 2203.00555, section 3).
double ValueGain(const ModelSpec& model) {
  return model.residual() == ModelSpec::DEEP_NORM
             ? std::pow(8.0 * static_cast<double>(model.layers()), -0.25)
             : 1.0;
}

}  // namespace

float InitialStd(const ModelSpec& model, WeightRole role, int64_t layer) {
  const bool carries_values = LeavesBlock(role) || role == WeightRole::kMlpUp;
  return static_cast<float>(MethodStd(model, role, layer) *
                            (carries_values ? ValueGain(model) : 1.0));
}

float ValueInitialGain(const ModelSpec& model) { return static_cast<float>(ValueGain(model)); }

}  // namespace twinstream
