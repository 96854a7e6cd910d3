// Standard deviations of the initial weights (model.init).
#pragma once

#include <cstdint>

#include "proto/job.pb.h"

namespace twinstream {

enum class WeightRole { kEmbedding, kHead, kQkv, kAttentionOut, kMlpUp, kMlpDown, kRouter };

// `layer`: of the block the weight belongs to; unused for embedding and head.
float InitialStd(const ModelSpec& model, WeightRole role, int64_t layer);

// Factor on InitialStd for the value rows of attention.qkv.weight.
float ValueInitialGain(const ModelSpec& model);

}  // namespace twinstream
