// The operations of attention: what is asked for, checked, and handed to the kernels that can do
// it: a library's, ours on tensor cores, or ours of float32 arithmetic.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/cuda/attention.h"
#include "core/cuda/ops.h"

namespace twinstream {
namespace {

using gpu::Activations;
using gpu::AttentionArguments;
using gpu::ScoreForm;

Activations ActivationsOf(Tensor tensor, int64_t elements, const char* name) {
  Check(tensor.elements() == elements, "attention's %s %s has not %d elements", name,
        tensor.shape(), elements);
  const bool bf16 = tensor.dtype() == DType::kBF16;
  Check(bf16 || tensor.dtype() == DType::kF32, "attention's %s of %s", name,
        NameOf(tensor.dtype()));
  return {tensor.data(), bf16};
}

struct Elements {
  explicit Elements(const AttentionShape& shape)
      : queries(shape.rows() * shape.heads * shape.head_dim),
        keys(shape.rows() * shape.kv_heads * shape.head_dim) {}
  int64_t queries, keys;
};

AttentionArguments ArgumentsOf(const AttentionShape& shape, ScoreForm form,
                               const AttentionRectangle& scores, const AttentionTensors& t) {
  Check(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, "%d query heads over %d key heads",
        shape.heads, shape.kv_heads);
  constexpr int64_t kMost = std::numeric_limits<int>::max() / 2;  // kernels count with int
  Check(shape.sequence <= kMost && shape.batch * shape.heads <= kMost,
        "%d sequences of %d tokens, %d heads", shape.batch, shape.sequence, shape.heads);
  const Elements elements(shape);
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  return {.form = form,
          .T = narrow(shape.sequence),
          .D = narrow(shape.head_dim),
          .H = narrow(shape.heads),
          .group = narrow(shape.heads / shape.kv_heads),
          .query_begin = narrow(scores.query_begin),
          .query_end = narrow(scores.query_end),
          .key_begin = narrow(scores.key_begin),
          .key_end = narrow(scores.key_end),
          .scale = 1 / std::sqrt(static_cast<float>(shape.head_dim)),
          .q = ActivationsOf(t.q, elements.queries, "q"),
          .k = ActivationsOf(t.k, elements.keys, "k"),
          .v = ActivationsOf(t.v, elements.keys, "v"),
          .out = ActivationsOf(t.out, elements.queries, "out"),
          .dout = {},
          .lse = t.lse.As<float>(),
          .dq = {},
          .dk = {},
          .dv = {},
          .first_key_head = 0,
          .delta = nullptr};
}

AttentionArguments TriangleOf(const AttentionShape& shape, const AttentionTensors& t) {
  return ArgumentsOf(shape, ScoreForm::kTriangle,
                     {.query_end = shape.sequence, .key_end = shape.sequence}, t);
}

AttentionArguments RectangleOf(const AttentionShape& shape, const AttentionRectangle& rectangle,
                               const AttentionTensors& t) {
  const auto [query_begin, query_end, key_begin, key_end] = rectangle;
  Check(0 <= query_begin && query_begin <= query_end && query_end <= shape.sequence &&
            0 <= key_begin && key_begin < key_end && key_end <= shape.sequence,
        "queries %d to %d against keys %d to %d of %d tokens", query_begin, query_end, key_begin,
        key_end, shape.sequence);
  return ArgumentsOf(shape, ScoreForm::kRectangle, rectangle, t);
}

// Absent tensors are aligned.
bool FitsTensorCores(const AttentionArguments& a) {
  return a.q.bf16 && a.k.bf16 && a.v.bf16 && (a.dout.data == nullptr || a.dout.bf16) &&
         a.D % 8 == 0 && a.D <= 256 &&
         gpu::Aligned(a.q.data, a.k.data, a.v.data, a.out.data, a.dout.data, a.dq.data, a.dk.data,
                      a.dv.data);
}

// Of those, whether products of warpgroups do them.
bool FitsWarpgroups(const AttentionArguments& a, const Card& card) {
  return card.warpgroup_products && a.D <= 128;
}

void Forward(const AttentionArguments& arguments, int64_t batch, const Card& card,
             gpu::Stream stream) {
  const int64_t heads = batch * arguments.H;
  if (heads == 0 || arguments.query_begin == arguments.query_end) return;
  if (!FitsTensorCores(arguments)) {
    LaunchFloatForward(arguments, heads, stream);
  } else if (FitsWarpgroups(arguments, card)) {
    LaunchWarpgroupForward(arguments, heads, stream);
  } else {
    LaunchTensorForward(arguments, heads, stream);
  }
}

void AddGradients(AttentionArguments& arguments, const AttentionShape& shape,
                  const AttentionGradients& g) {
  const Elements elements(shape);
  arguments.dq = ActivationsOf(g.dq, elements.queries, "dq");
  arguments.dk = ActivationsOf(g.dk, elements.keys, "dk");
  arguments.dv = ActivationsOf(g.dv, elements.keys, "dv");
  arguments.dout = ActivationsOf(g.dout, elements.queries, "dout");
}

void BackwardOfHeads(const AttentionArguments& arguments, int64_t key_heads, const Card& card,
                     gpu::Stream stream) {
  if (!FitsTensorCores(arguments)) {
    LaunchFloatQueryGradient(arguments, key_heads, stream);
    LaunchFloatKeyGradient(arguments, key_heads, stream);
  } else if (FitsWarpgroups(arguments, card)) {
    LaunchWarpgroupQueryGradient(arguments, key_heads, stream);
    LaunchWarpgroupKeyGradient(arguments, key_heads, stream);
  } else {
    LaunchTensorQueryGradient(arguments, key_heads, stream);
    LaunchTensorKeyGradient(arguments, key_heads, stream);
  }
}

// As many key heads at a time as the workspace has room for the deltas of.
void Backward(AttentionArguments arguments, int64_t batch, const Card& card,
              const Workspace& workspace, gpu::Stream stream) {
  const int64_t key_heads = batch * arguments.H / arguments.group;
  if (key_heads == 0 || arguments.query_begin == arguments.query_end) return;
  const int64_t bytes = AttentionBackwardBytes(arguments.group, arguments.T);  // of one key head
  const int64_t at_once = std::clamp<int64_t>(workspace.bytes / bytes, 1, key_heads);
  arguments.delta = workspace.As<float>(at_once * bytes);
  for (int64_t first = 0; first < key_heads; first += at_once) {
    arguments.first_key_head = static_cast<int>(first);
    BackwardOfHeads(arguments, std::min(at_once, key_heads - first), card, stream);
  }
}

// Whether a library is asked, before our own kernels, for a causal triangle. Not for results in
// float32: further calls will add to them, of rectangles, which are always ours.
bool SuitsLibrary(const AttentionArguments& a, int64_t batch) {
  const auto is_bf16 = [](const Activations& x) { return x.data == nullptr || x.bf16; };
  return batch * a.H * a.T > 0 && (a.D == 64 || a.D == 128) && FitsTensorCores(a) && a.out.bf16 &&
         is_bf16(a.dq) && is_bf16(a.dk) && is_bf16(a.dv);
}

}  // namespace

void CudaOps::AttentionForward(const AttentionShape& shape, const AttentionTensors& t) const {
  const AttentionArguments arguments = TriangleOf(shape, t);
  const bool ask = fused_ != nullptr && SuitsLibrary(arguments, shape.batch);
  if (ask && fused_->Forward(shape, t)) return;
  Forward(arguments, shape.batch, card_, stream_);
}

void CudaOps::AttentionMergeForward(const AttentionShape& shape,
                                    const AttentionRectangle& rectangle,
                                    const AttentionTensors& t) const {
  Forward(RectangleOf(shape, rectangle, t), shape.batch, card_, stream_);
}

void CudaOps::AttentionBackward(const AttentionShape& shape, const AttentionTensors& t,
                                const AttentionGradients& g) const {
  AttentionArguments arguments = TriangleOf(shape, t);
  AddGradients(arguments, shape, g);
  const bool ask = fused_ != nullptr && SuitsLibrary(arguments, shape.batch);
  if (ask && fused_->Backward(shape, t, g)) return;
  Backward(arguments, shape.batch, card_, workspace_, stream_);
}

void CudaOps::AttentionMergeBackward(const AttentionShape& shape,
                                     const AttentionRectangle& rectangle, const AttentionTensors& t,
                                     const AttentionGradients& g) const {
  AttentionArguments arguments = RectangleOf(shape, rectangle, t);
  AddGradients(arguments, shape, g);
  Backward(arguments, shape.batch, card_, workspace_, stream_);
}

}  // namespace twinstream
