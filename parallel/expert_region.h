// ExpertRegion: the whole of expert parallelism inside an MoE layer. Its ranks hold all experts
// together, a contiguous range of them each, and exchange the tokens' rows; the routing statistics
// are sums over all ranks that see other tokens.
#pragma once

#include "core/tensor.h"
#include "parallel/communicator.h"

namespace twinstream {

class ExpertRegion {
 public:
  // experts: the ranks that share out the experts; replicas: all that see tokens of one micro-batch
  // (GridGroup::kExperts, kReplicas). Both outlive this.
  ExpertRegion(Communicator& experts, Communicator& replicas)
      : experts_(&experts), replicas_(&replicas) {}
  // One rank that holds every expert and never communicates: to declare a model's parameters in
  // their global shapes.
  static ExpertRegion Alone() { return ExpertRegion(); }

  int rank() const { return experts_ == nullptr ? 0 : experts_->rank(); }
  int size() const { return experts_ == nullptr ? 1 : experts_->size(); }

  // Communicator::AllToAll over the experts' ranks.
  void Exchange(Tensor out, RowParts out_parts, Tensor in, RowParts in_parts) const;
  // statistics <- their sum over everybody's tokens.
  void SumOverTokens(Tensor statistics) const;

 private:
  ExpertRegion() = default;

  Communicator* experts_ = nullptr;
  Communicator* replicas_ = nullptr;
};

}  // namespace twinstream
