#include "models/attention.h"

#include "absl/strings/str_cat.h"
#include "models/initialization.h"

namespace twinstream {
namespace {

enum SavedIndex : size_t { kQkv, kQ, kKeysAndValues, kScales, kLse, kContext };

// This rank's key/value heads: a contiguous share, or one head that size / kv_heads consecutive
// ranks hold together.
struct KvHeads {
  Range range;
  bool shared = false;
  bool primary = true;
};

KvHeads KvHeadsOf(const ModelContext& context) {
  const int64_t heads = context.model.kv_heads(), size = context.region.size(),
                rank = context.region.rank();
  if (heads >= size) return {.range = {rank * heads / size, (rank + 1) * heads / size}};
  const int64_t head = rank * heads / size;
  return {.range = {head, head + 1}, .shared = true, .primary = rank % (size / heads) == 0};
}

Range QueryHeadsOf(const ModelContext& context) {
  const int64_t heads = context.model.heads(), size = context.region.size(),
                rank = context.region.rank();
  return {rank * heads / size, (rank + 1) * heads / size};
}

AttentionShape ShapeOf(const ModelContext& context) {
  return {.batch = context.batch,
          .sequence = context.shard().tokens(),
          .heads = QueryHeadsOf(context).size(),
          .kv_heads = KvHeadsOf(context).range.size(),
          .head_dim = context.model.head_dim()};
}

}  // namespace

Attention::Attention(ModelContext& context, int64_t layer, bool qkv_norm)
    : context_(context), shape_(ShapeOf(context)), core_(context, shape_) {
  const ModelSpec& model = context.model;
  const int64_t D = model.head_dim(), H = model.heads(), K = model.kv_heads(), C = model.hidden();
  const KvHeads kv = KvHeadsOf(context);
  const Range q = QueryHeadsOf(context);

  const std::string prefix = absl::StrCat("layers.", layer, ".attention.");
  const Shape qkv_shape = {(H + 2 * K) * D, C};
  const auto rows = [&](int64_t first_head, Range heads) {
    return Box::Range(qkv_shape, 0, (first_head + heads.begin) * D, (first_head + heads.end) * D);
  };
  ParameterSpec qkv = {.name = prefix + "qkv.weight",
                       .global = qkv_shape,
                       .boxes = {{rows(0, q)},
                                 {rows(H, kv.range), kv.primary},
                                 {rows(H + K, kv.range), kv.primary, ValueInitialGain(model)}},
                       .init_std = InitialStd(model, WeightRole::kQkv, layer),
                       .first_overwrites = true};
  if (kv.shared) {
    qkv.sum_over_tensor = true;
    qkv.shared = Box::Range(qkv_shape, 0, H * D, (H + 2 * K) * D);
  }
  qkv_ = &context.parameters.Declare(qkv);

  const Shape out_shape = {C, H * D};
  out_ =
      &context.parameters.Declare({.name = prefix + "out.weight",
                                   .global = out_shape,
                                   .boxes = {{Box::Range(out_shape, 1, q.begin * D, q.end * D)}},
                                   .init_std = InitialStd(model, WeightRole::kAttentionOut, layer),
                                   .first_overwrites = true});

  // Each rank norms its own heads, so these gradients are parts whatever happens to the tokens.
  if (qkv_norm || model.qk_norm()) {
    q_norm_ = &DeclareVector(context, prefix + "q_norm.weight", D, true);
    k_norm_ = &DeclareVector(context, prefix + "k_norm.weight", D, true);
  }
  if (qkv_norm) v_norm_ = &DeclareVector(context, prefix + "v_norm.weight", D, true);
}

std::vector<TensorSpec> Attention::SavedSpecs() const {
  const AttentionShape& s = shape_;
  const Shape q = {s.batch, s.heads, s.sequence, s.head_dim};
  const int64_t scale_columns = q_norm_ != nullptr ? s.heads + 2 * s.kv_heads : 0;
  const DType dtype = context_.activation;
  return {{"qkv", dtype, {s.rows(), s.qkv_columns()}},
          {"q", dtype, q},
          core_.KeysAndValues(),
          {"qkv_scales", DType::kF32, {s.rows(), scale_columns}},
          {"lse", DType::kF32, {s.batch, s.heads, s.sequence}},
          {"context", dtype, {s.rows(), s.heads * s.head_dim}}};
}

int64_t Attention::ScratchBytes() const {
  const std::vector<TensorSpec> saved = SavedSpecs();
  return BytesFor({saved[kContext], saved[kQ], saved[kKeysAndValues]}) +  // their gradients
         core_.ScratchBytes();
}

QkvTensors Attention::Qkv(Saved saved) const {
  const auto weight = [](const Parameter* norm) {
    return norm == nullptr ? Tensor() : norm->value;
  };
  return {.qkv = saved[kQkv],
          .q = saved[kQ],
          .k = saved[kKeysAndValues].At(0),
          .v = saved[kKeysAndValues].At(1),
          .rope = context_.rope,
          .q_norm = weight(q_norm_),
          .k_norm = weight(k_norm_),
          .v_norm = weight(v_norm_),
          .scales = q_norm_ == nullptr ? Tensor() : saved[kScales]};
}

RingAttentionTensors Attention::CoreTensors(Saved saved) {
  return {.out = saved[kContext], .lse = saved[kLse], .q = saved[kQ], .kv = saved[kKeysAndValues]};
}

void Attention::ProjectIn(Tensor h, Saved saved) {
  context_.ops.Matmul(saved[kQkv], h, qkv_->value, {.transpose_b = true});
}

void Attention::Core(Saved saved) {
  context_.ops.QkvForward(shape_, context_.eps(), Qkv(saved));
  core_.Forward(CoreTensors(saved));
}

void Attention::ProjectOut(Tensor o, Saved saved) {
  context_.ops.Matmul(o, saved[kContext], out_->value, {.transpose_b = true});
}

void Attention::BackwardInput(Tensor d_o, Tensor dh, Saved saved) {
  const Ops& ops = context_.ops;
  ScratchScope scope(*context_.scratch);
  const auto like = [&](SavedIndex i) {
    return context_.scratch->Allocate(saved[i].dtype(), saved[i].shape());
  };
  const Tensor d_context = like(kContext), dq = like(kQ), dkv = like(kKeysAndValues);

  ops.Matmul(d_context, d_o, out_->value, {});
  core_.Backward(CoreTensors(saved), dq, dkv, d_context);
  QkvTensors qkv = Qkv(saved);
  qkv.q = dq;
  qkv.k = dkv.At(0);
  qkv.v = dkv.At(1);
  const auto gradient = [](const Parameter* norm) {
    return norm == nullptr ? Tensor() : norm->gradient;
  };
  // dqkv takes qkv's place: BackwardWeight needs it.
  ops.QkvBackward(shape_, qkv, saved[kQkv], gradient(q_norm_), gradient(k_norm_),
                  gradient(v_norm_));
  ops.Matmul(dh, saved[kQkv], qkv_->value, {});
}

void Attention::BackwardWeight(Tensor h, Tensor d_o, Saved saved) {
  context_.ops.Matmul(qkv_->gradient, saved[kQkv], h,
                      {.transpose_a = true, .accumulate = qkv_->AddsToGradient()});
  context_.ops.Matmul(out_->gradient, d_o, saved[kContext],
                      {.transpose_a = true, .accumulate = out_->AddsToGradient()});
}

}  // namespace twinstream
