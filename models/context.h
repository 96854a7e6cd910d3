// What every part of a network is built with and computes through.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/ops.h"
#include "parallel/communicator.h"
#include "parallel/expert_region.h"
#include "parallel/parameter_store.h"
#include "parallel/sequence_shard.h"
#include "parallel/stage.h"
#include "parallel/tensor_region.h"
#include "proto/job.pb.h"

namespace twinstream {

// Everything pointed to outlives the network.
struct ModelContext {
  ModelSpec model;    // resolved: every size set
  int64_t batch = 1;  // B: sequences per micro-batch
  Device& device;
  const Ops& ops;  // of the device
  const TensorRegion& region;
  const ExpertRegion& experts;
  ParameterStore& parameters;
  Communicator* context_ranks = nullptr;  // who share the sequences; null: nobody
  // Of activations and their gradients, between blocks and within; the matrices of `parameters`
  // have the same. Statistics, logits and the gradients of weights are float32 whatever it is.
  DType activation = DType::kF32;
  // Set before the first Forward, once all parts have said how much they need.
  Scratch* scratch = nullptr;
  StageObserver* observer = nullptr;  // null: nobody
  Tensor rope;                        // of this rank's tokens of a sequence: see QkvTensors::rope
  // [L, 2 + E] f64, MoE: of each layer += load balance and router z-loss of each micro-batch
  // (Ops::AddRouterLosses), then its experts' tokens; over all replicas' tokens.
  Tensor router_sums;
  // [2, E], MoE: on the host, the rows that a ProjectIn has sent to each expert, and those that it
  // has got from each sender for each of this rank's experts.
  absl::Span<int32_t> expert_rows;

  SequenceShard shard() const;                                 // this rank's part of a sequence
  int64_t tokens() const { return batch * shard().tokens(); }  // N
  int64_t hidden() const { return model.hidden(); }            // C
  float eps() const { return static_cast<float>(model.norm_eps()); }
};

// What a precision computes in.
DType ActivationType(TrainSpec::Precision precision);

// A norm weight or scale [extent], initially ones. Replicated over the tensor ranks;
// `partial_gradient`: each rank sees only its tokens or its heads, so the gradient is the sum over
// the tensor ranks.
Parameter& DeclareVector(ModelContext& context, const std::string& name, int64_t extent,
                         bool partial_gradient);

}  // namespace twinstream
