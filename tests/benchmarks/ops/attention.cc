// Causal attention, and the pass that makes its heads.
#include "tests/benchmarks/ops/op_benchmark.h"

namespace twinstream::benchmarks {
namespace {

AttentionShape AttentionShapeOf(const OpShape& shape) {
  const ModelSpec& model = shape.model;
  return {.batch = shape.batch,
          .sequence = model.sequence(),
          .heads = model.heads(),
          .kv_heads = model.kv_heads(),
          .head_dim = model.head_dim()};
}

AttentionTensors AttentionOperands(Operands& memory, const AttentionShape& s, DType activation) {
  const Shape queries = {s.batch, s.heads, s.sequence, s.head_dim},
              keys = {s.batch, s.kv_heads, s.sequence, s.head_dim};
  return {.q = memory.Random(activation, queries),
          .k = memory.Random(activation, keys),
          .v = memory.Random(activation, keys),
          .out = memory.Zeros(activation, {s.rows(), s.heads * s.head_dim}),
          .lse = memory.Zeros(DType::kF32, {s.batch, s.heads, s.sequence})};
}

PreparedOp PrepareForward(Operands& memory, const AttentionShape& s, DType activation) {
  const AttentionTensors t = AttentionOperands(memory, s, activation);
  return [=, &ops = memory.ops()] { ops.AttentionForward(s, t); };
}

// Five products: scores are not kept, so that they are taken again is part of the floor.
PreparedOp PrepareBackward(Operands& memory, const AttentionShape& s, DType activation) {
  const AttentionTensors t = AttentionOperands(memory, s, activation);
  memory.ops().AttentionForward(s, t);
  const auto zeros = [&](Tensor like) { return memory.Zeros(like.dtype(), like.shape()); };
  const AttentionGradients g = {.dq = zeros(t.q),
                                .dk = zeros(t.k),
                                .dv = zeros(t.v),
                                .dout = memory.Random(activation, t.out.shape())};
  return [=, &ops = memory.ops()] { ops.AttentionBackward(s, t, g); };
}

enum class HeadNorms { kNone, kAll };

QkvTensors QkvOperands(Operands& memory, const AttentionShape& s, DType activation,
                       HeadNorms norms) {
  const Shape queries = {s.batch, s.heads, s.sequence, s.head_dim},
              keys = {s.batch, s.kv_heads, s.sequence, s.head_dim};
  QkvTensors t = {.qkv = memory.Random(activation, {s.rows(), s.qkv_columns()}),
                  .q = memory.Zeros(activation, queries),
                  .k = memory.Zeros(activation, keys),
                  .v = memory.Zeros(activation, keys),
                  .rope = memory.Random(DType::kF32, {s.sequence, s.head_dim})};
  if (norms == HeadNorms::kNone) return t;
  t.q_norm = memory.Random(DType::kF32, {s.head_dim});
  t.k_norm = memory.Random(DType::kF32, {s.head_dim});
  t.v_norm = memory.Random(DType::kF32, {s.head_dim});
  t.scales = memory.Zeros(DType::kF32, {s.rows(), s.heads + 2 * s.kv_heads});
  return t;
}

constexpr float kEps = 1e-5F;

PreparedOp PrepareQkvForward(Operands& memory, const AttentionShape& s, DType activation,
                             HeadNorms norms) {
  const QkvTensors t = QkvOperands(memory, s, activation, norms);
  return [=, &ops = memory.ops()] { ops.QkvForward(s, kEps, t); };
}

// The gradient takes the place of qkv.
PreparedOp PrepareQkvBackward(Operands& memory, const AttentionShape& s, DType activation,
                              HeadNorms norms) {
  QkvTensors t = QkvOperands(memory, s, activation, norms);
  memory.ops().QkvForward(s, kEps, t);
  for (const Tensor& gradient : {t.q, t.k, t.v}) memory.ops().Zero(gradient);
  const auto norm_gradient = [&](Tensor norm) {
    return norm ? memory.Zeros(DType::kF32, norm.shape()) : Tensor();
  };
  const Tensor dq_norm = norm_gradient(t.q_norm), dk_norm = norm_gradient(t.k_norm),
               dv_norm = norm_gradient(t.v_norm);
  return [=, &ops = memory.ops()] { ops.QkvBackward(s, t, t.qkv, dq_norm, dk_norm, dv_norm); };
}

}  // namespace

std::vector<OpBenchmark> AttentionBenchmarks(const OpShape& shape, DType activation) {
  const AttentionShape s = AttentionShapeOf(shape);
  const auto qkv = [=](auto prepare, HeadNorms norms) {
    return [=](Operands& memory) { return prepare(memory, s, activation, norms); };
  };
  return {{"QkvForward/plain", activation, qkv(PrepareQkvForward, HeadNorms::kNone)},
          {"QkvForward/norms", activation, qkv(PrepareQkvForward, HeadNorms::kAll)},
          {"AttentionForward", activation,
           [=](Operands& memory) { return PrepareForward(memory, s, activation); }},
          {"AttentionBackward", activation,
           [=](Operands& memory) { return PrepareBackward(memory, s, activation); }},
          {"QkvBackward/plain", activation, qkv(PrepareQkvBackward, HeadNorms::kNone)},
          {"QkvBackward/norms", activation, qkv(PrepareQkvBackward, HeadNorms::kAll)}};
}

}  // namespace twinstream::benchmarks
