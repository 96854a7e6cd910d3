#include "models/ring_attention.h"

#include <algorithm>
#include <utility>

namespace twinstream {
namespace {

// The operands of a call that sees `kv` and whose result is `out`.
AttentionTensors WithKeys(const RingAttentionTensors& t, Tensor out, Tensor kv) {
  return {.q = t.q, .k = kv.At(0), .v = kv.At(1), .out = out, .lse = t.lse};
}

}  // namespace

AttentionRectangle RingRectangle(int64_t tokens, int rank, int owner) {
  const int64_t half = tokens / 2;
  if (owner < rank) return {.query_end = tokens, .key_end = half};
  return {.query_begin = half, .query_end = tokens, .key_end = tokens};
}

AttentionRectangle RingAttention::RectangleOf(int step) const {
  const SequenceShard shard = context_.shard();
  return RingRectangle(shape_.sequence, shard.rank,
                       (shard.rank - step + shard.ranks) % shard.ranks);
}

TensorSpec RingAttention::KeysAndValues() const {
  return {"keys_and_values",
          context_.activation,
          {2, shape_.batch * shape_.kv_heads, shape_.sequence, shape_.head_dim}};
}

TensorSpec RingAttention::KeyGradients() const {
  return {"key_gradients", DType::kF32, KeysAndValues().shape};
}

Tensor RingAttention::SumFor(Tensor result) const {
  if (ranks() == 1 || result.dtype() == DType::kF32) return result;
  return context_.scratch->Allocate(DType::kF32, result.shape());
}

void RingAttention::Store(Tensor result, Tensor sum) const {
  if (sum.data() != result.data()) context_.ops.Cast(result, sum);
}

// Backward's: keys and values on their way in and out, gradients likewise but for the caller's
// tensor, a step's part of them, and the sums that are wider than the caller's tensors.
int64_t RingAttention::ScratchBytes() const {
  if (ranks() == 1) return 0;
  const TensorSpec gradients = KeyGradients(),
                   dq = {"dq", DType::kF32, {shape_.rows(), shape_.heads * shape_.head_dim}};
  const bool in_place = context_.activation == DType::kF32;  // SumFor
  return std::min(ranks() - 1, 2) * BytesFor({KeysAndValues()}) + BytesFor({gradients, gradients}) +
         (in_place ? 0 : BytesFor({gradients, dq}));
}

RingAttention::Shift RingAttention::Start(Tensor to_next, Tensor from_previous,
                                          Channel channel) const {
  Communicator& ring = *context_.context_ranks;
  const int rank = ring.rank(), size = ring.size();
  const Ticket received = ring.StartReceive(from_previous, (rank + size - 1) % size, channel);
  return {.sent = ring.Send(to_next, (rank + 1) % size, channel), .received = received};
}

void RingAttention::Finish(const Shift& shift) const {
  context_.context_ranks->Wait(shift.received);
  context_.context_ranks->Wait(shift.sent);
}

std::array<Tensor, 2> RingAttention::Travelling() const {
  std::array<Tensor, 2> tensors;
  const TensorSpec spec = KeysAndValues();
  for (size_t i = 0; i < tensors.size() && static_cast<int>(i) + 1 < ranks(); ++i) {
    tensors[i] = context_.scratch->Allocate(spec.dtype, spec.shape);
  }
  return tensors;
}

void RingAttention::Forward(const RingAttentionTensors& t) const {
  const Ops& ops = context_.ops;
  ScratchScope scope(*context_.scratch);
  const std::array<Tensor, 2> travelling = Travelling();
  const Tensor sum = SumFor(t.out);
  const auto with = [&](Tensor kv) { return WithKeys(t, sum, kv); };
  Tensor seen = t.kv;
  for (int step = 0; step < ranks(); ++step) {
    const Tensor next = travelling[static_cast<size_t>(step % 2)];
    const bool goes_on = step + 1 < ranks();
    const Shift shift = goes_on ? Start(seen, next, Channel::kKeyValue) : Shift();
    if (step == 0) {
      ops.AttentionForward(shape_, with(seen));
    } else {
      ops.AttentionMergeForward(shape_, RectangleOf(step), with(seen));
    }
    if (goes_on) Finish(shift);
    seen = next;
  }
  Store(t.out, sum);
}

// The gradients of a rank's keys and values follow these round the ring, a step behind: each rank
// adds its part to what has arrived, and the last one sends them home.
void RingAttention::Backward(const RingAttentionTensors& t, Tensor dq, Tensor dkv,
                             Tensor dout) const {
  const Ops& ops = context_.ops;
  const auto with = [&](Tensor kv) { return WithKeys(t, t.out, kv); };
  if (ranks() == 1) {
    ops.AttentionBackward(shape_, with(t.kv),
                          {.dq = dq, .dk = dkv.At(0), .dv = dkv.At(1), .dout = dout});
    return;
  }
  ScratchScope scope(*context_.scratch);
  const std::array<Tensor, 2> travelling = Travelling();
  const TensorSpec spec = KeyGradients();
  const Tensor part = context_.scratch->Allocate(spec.dtype, spec.shape);
  const Tensor dq_sum = SumFor(dq), dkv_sum = SumFor(dkv);
  // In turn sent on and received into; what is received last, the rank's own, is the caller's.
  std::array<Tensor, 2> gradients = {dkv_sum, context_.scratch->Allocate(spec.dtype, spec.shape)};
  if (ranks() % 2 == 1) std::swap(gradients[0], gradients[1]);

  const auto to = [&](Tensor dkv_part) {
    return AttentionGradients{
        .dq = dq_sum, .dk = dkv_part.At(0), .dv = dkv_part.At(1), .dout = dout};
  };

  Tensor seen = t.kv;
  for (int step = 0; step < ranks(); ++step) {
    const Tensor next = travelling[static_cast<size_t>(step % 2)];
    const Tensor gradient = gradients[static_cast<size_t>(step % 2)];
    const bool goes_on = step + 1 < ranks();
    const Shift shift = goes_on ? Start(seen, next, Channel::kKeyValue) : Shift();
    if (step == 0) {
      ops.AttentionBackward(shape_, with(seen), to(gradient));
    } else {
      const Tensor before = gradients[static_cast<size_t>(1 - step % 2)];
      const Shift gradient_shift = Start(before, gradient, Channel::kKeyValueGradient);
      ops.Zero(part);
      ops.AttentionMergeBackward(shape_, RectangleOf(step), with(seen), to(part));
      Finish(gradient_shift);
      ops.Add(gradient, part);
    }
    if (goes_on) Finish(shift);
    seen = next;
  }
  const size_t last = static_cast<size_t>((ranks() - 1) % 2);
  Finish(Start(gradients[last], gradients[1 - last], Channel::kKeyValueGradient));
  Store(dq, dq_sum);
  Store(dkv, dkv_sum);
}

}  // namespace twinstream
