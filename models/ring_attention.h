// RingAttention: causal attention over sequences that context ranks share (ring attention, arXiv
// 2310.01889). Each of c ranks keeps its queries; the keys and values of all ranks go round the
// ring, and every rank takes those that it sees into its result.
//
// With the tokens of SequenceShard, two halves of n tokens on each rank, what rank r sees of
//   its own tokens is the causal triangle:        2 n^2 scores,
//   an earlier rank's is their first half:        2n queries x n keys,
//   a later rank's is all, by its second half:    n queries x 2n keys,
// so that every rank computes 2 n^2 scores in each of the c steps, none of them masked but on the
// triangle's edge. Results are merged in the order own, rank before, rank before that, ...: the
// same bits every time. They are float32 until the last step, the gradients of keys and values on
// their way round the ring too.
//
// A step's messages are under way while it computes. Each rank starts its receive, then its send,
// computes, and waits for both: no order of arrival can stop the ring.
#pragma once

#include <array>

#include "models/context.h"

namespace twinstream {

// What `rank` sees of the `tokens` of `owner`, another one.
AttentionRectangle RingRectangle(int64_t tokens, int rank, int owner);

// What Forward computes, and Backward needs, of one micro-batch on this rank. out, lse, q: as
// Ops::AttentionForward, of this rank's tokens.
struct RingAttentionTensors {
  Tensor out, lse;  // written by Forward
  Tensor q;
  Tensor kv;  // RingAttention::KeysAndValues
};

class RingAttention {
 public:
  // shape: of this rank. `context` outlives this.
  RingAttention(const ModelContext& context, const AttentionShape& shape)
      : context_(context), shape_(shape) {}

  // k, then v, in one tensor, which is one message: [2, B * K, tokens, D].
  TensorSpec KeysAndValues() const;
  // The most that Forward or Backward allocates from the context's scratch.
  int64_t ScratchBytes() const;

  // Over the keys of all ranks.
  void Forward(const RingAttentionTensors& t) const;
  // dq, dkv are written.
  void Backward(const RingAttentionTensors& t, Tensor dq, Tensor dkv, Tensor dout) const;

 private:
  // A message to the next rank and one from the rank before.
  struct Shift {
    Ticket sent, received;
  };
  Shift Start(Tensor to_next, Tensor from_previous, Channel channel) const;
  void Finish(const Shift& shift) const;

  int ranks() const { return context_.shard().ranks; }
  TensorSpec KeyGradients() const;  // of keys and values: float32
  // `result`, or float32 memory in its place while several steps add to it.
  Tensor SumFor(Tensor result) const;
  void Store(Tensor result, Tensor sum) const;  // rounds a sum that has memory of its own
  // Room for those that are seen and for those that arrive, as far as there are any.
  std::array<Tensor, 2> Travelling() const;
  // What this rank sees in this step: of the tokens of the rank so many places before it.
  AttentionRectangle RectangleOf(int step) const;

  const ModelContext& context_;
  AttentionShape shape_;
};

}  // namespace twinstream
