// TensorRegion: the whole of tensor parallelism inside a residual block. A block computes on all N
// tokens with its slice of the heads or of the MLP; between blocks the tokens are replicated on the
// tensor ranks, or, with sequence parallelism, sharded over them by rows (Megatron-LM, arXiv
// 2105.04473 and 2205.05198).
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "core/tensor.h"
#include "parallel/box.h"
#include "parallel/communicator.h"

namespace twinstream {

class TensorRegion {
 public:
  // shard_tokens: sequence parallelism; the token count must then divide by the communicator's
  // size.
  TensorRegion(Communicator& tensor, bool shard_tokens)
      : tensor_(&tensor), shard_tokens_(shard_tokens) {}
  // One rank that holds everything and never communicates: to declare a model's parameters in their
  // global shapes.
  static TensorRegion Alone() { return TensorRegion(); }

  int rank() const { return tensor_ == nullptr ? 0 : tensor_->rank(); }
  int size() const { return tensor_ == nullptr ? 1 : tensor_->size(); }
  bool shards_tokens() const { return shard_tokens_ && size() > 1; }

  // counts[r] elements of `inout` are rank r's; afterwards every rank has all of it.
  void Gather(Tensor inout, absl::Span<const int64_t> counts) const;

  // The rows of [N, ...] that this rank holds between blocks: all of them, or its shard.
  Range OwnRows(int64_t rows) const;
  Tensor Own(Tensor full) const;

  // All in place on a full [N, C] tensor of which the own rows count between blocks.
  void Enter(Tensor h) const;            // own rows -> all rows
  void EnterBackward(Tensor dh) const;   // this rank's addend -> the sum, in the own rows
  void Leave(Tensor o) const;            // this rank's addend -> the sum, in the own rows
  void LeaveBackward(Tensor d_o) const;  // own rows -> all rows

 private:
  TensorRegion() = default;
  void GatherRows(Tensor full) const;
  void SumParts(Tensor full) const;
  PieceCounts ElementCounts(Tensor full) const;

  Communicator* tensor_ = nullptr;
  bool shard_tokens_ = false;
};

}  // namespace twinstream
