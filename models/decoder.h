// The decoder language model as a whole: its parameters, and how its layers fall onto pipeline
// stages.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"
#include "models/context.h"
#include "parallel/box.h"
#include "proto/job.pb.h"

namespace twinstream {

struct ModelParameter {
  std::string name;
  Shape shape;  // global
};

// Every parameter of the model once, in model order. model: resolved. The device computes nothing.
std::vector<ModelParameter> ModelParameters(const ModelSpec& model, Device& device);

// The same as float32 tensors in global shape.
std::vector<TensorSpec> ModelTensors(const std::vector<ModelParameter>& parameters);

// Layers of each stage, first to last: contiguous, at least one each, the dearest stage as cheap as
// can be, with the head's cost on the last one.
std::vector<Range> StageLayers(const ModelSpec& model, int stages);

// A row of D floats for each token of the shard, in host order: cos(t theta^(-2j/D)) for j < D/2,
// then the sines, t being the token's position in the sequence (rotary embedding, arXiv
// 2104.09864).
std::vector<float> RopeTable(const ModelSpec& model, const SequenceShard& shard);

}  // namespace twinstream
