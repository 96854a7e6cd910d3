#include "core/op_checks.h"

namespace twinstream {
namespace {

bool IsActivation(Tensor tensor) {
  return tensor.dtype() == DType::kF32 || tensor.dtype() == DType::kBF16;
}

// up is [N, 2F] for the [N, F] of `half`.
void CheckSwiGlu(Tensor half, Tensor up) {
  Check(half.shape().rank() == 2 && up.shape() == Shape({half.dim(0), 2 * half.dim(1)}),
        "SwiGLU of %s into %s", up.shape(), half.shape());
}

void CheckEmbedding(Tensor rows, Tensor tokens, Tensor table) {
  Check(rows.shape().rank() == 2 && table.shape().rank() == 2 && rows.dim(1) == table.dim(1) &&
            rows.dim(0) == tokens.elements(),
        "embedding of %s tokens: rows %s, table %s", tokens.shape(), rows.shape(), table.shape());
}

}  // namespace

void CheckCopy(Tensor to, Tensor from) {
  Check(to.dtype() == from.dtype() && to.elements() == from.elements(), "copy of %s to %s",
        from.shape(), to.shape());
}

MatmulShape CheckedMatmul(Tensor out, Tensor a, Tensor b, const MatmulOptions& options) {
  Check(out.shape().rank() == 2 && a.shape().rank() == 2 && b.shape().rank() == 2,
        "product of %s and %s into %s: all must be matrices", a.shape(), b.shape(), out.shape());
  const int64_t M = out.dim(0), N = out.dim(1), K = a.dim(options.transpose_a ? 0 : 1);
  Check(a.dim(options.transpose_a ? 1 : 0) == M && b.dim(options.transpose_b ? 1 : 0) == K &&
            b.dim(options.transpose_b ? 0 : 1) == N,
        "product of %s%s and %s%s into %s", a.shape(), options.transpose_a ? "'" : "", b.shape(),
        options.transpose_b ? "'" : "", out.shape());
  Check(IsActivation(out) && IsActivation(a) && IsActivation(b),
        "product of %s and %s into %s: all must be float32 or bf16", NameOf(a.dtype()),
        NameOf(b.dtype()), NameOf(out.dtype()));
  return {M, N, K};
}

void CheckQkvForward(const AttentionShape& shape, const QkvTensors& t) {
  const int64_t N = shape.rows(), D = shape.head_dim;
  Check(D % 2 == 0, "rotary embedding needs an even head_dim, not %d", D);
  Check(t.qkv.elements() == N * shape.qkv_columns(), "qkv %s for %d rows of %d columns",
        t.qkv.shape(), N, shape.qkv_columns());
  Check(t.q.elements() == N * shape.heads * D && t.k.elements() == N * shape.kv_heads * D &&
            t.v.elements() == N * shape.kv_heads * D,
        "q %s, k %s, v %s", t.q.shape(), t.k.shape(), t.v.shape());
  Check(t.rope.elements() == shape.sequence * D, "rope %s", t.rope.shape());
  const bool norms = t.q_norm || t.k_norm || t.v_norm;
  Check(!norms || t.scales.elements() == N * (shape.heads + 2 * shape.kv_heads), "scales %s",
        t.scales.shape());
}

void CheckQkvBackward(const AttentionShape& shape, const QkvTensors& t, Tensor dqkv) {
  CheckQkvForward(shape, t);
  Check(dqkv.elements() == t.qkv.elements(), "gradient %s of %s", dqkv.shape(), t.qkv.shape());
}

void CheckSwiGluForward(Tensor out, Tensor up) { CheckSwiGlu(out, up); }

void CheckSwiGluBackward(Tensor dup, Tensor dout, Tensor up) {
  CheckSwiGlu(dout, up);
  Check(dup.shape() == up.shape(), "gradient %s of %s", dup.shape(), up.shape());
}

void CheckRouteTokens(const RoutingTensors& t) {
  const int64_t N = t.probabilities.dim(0), E = t.probabilities.dim(1), k = t.experts.dim(1);
  Check(0 < k && k <= E && t.lse.elements() == N && t.experts.dim(0) == N &&
            t.weights.shape() == t.experts.shape() && t.rows.shape() == t.experts.shape() &&
            t.choices.elements() == N * k && t.counts.elements() == E &&
            t.statistics.elements() == 2 * E + 1,
        "routing of %s to experts %s: weights %s, rows %s, choices %s, counts %s, statistics %s",
        t.probabilities.shape(), t.experts.shape(), t.weights.shape(), t.rows.shape(),
        t.choices.shape(), t.counts.shape(), t.statistics.shape());
}

void CheckRouterBackward(const RoutingTensors& t, Tensor weighted) {
  CheckRouteTokens(t);
  Check(weighted.elements() == t.experts.elements(), "products %s of %d choices", weighted.shape(),
        t.experts.elements());
}

void CheckAddRouterLosses(Tensor losses, Tensor loads, Tensor statistics) {
  Check(losses.elements() == 2 && statistics.elements() == 2 * loads.elements() + 1,
        "losses %s and loads %s of statistics %s", losses.shape(), loads.shape(),
        statistics.shape());
}

void CheckGatherRows(Tensor out, Tensor in, Tensor choices, Tensor weights) {
  const int64_t R = out.dim(0), N = in.dim(0);
  Check(out.dim(1) == in.dim(1) && choices.elements() == R && N > 0 && R % N == 0 &&
            (!weights || weights.elements() == R),
        "rows %s of %s by %s with weights %s", out.shape(), in.shape(), choices.shape(),
        weights.shape());
}

void CheckCombineRows(Tensor out, Tensor in, Tensor rows, Tensor weights) {
  const int64_t N = out.dim(0);
  Check(in.dim(0) == N * rows.dim(1) && in.dim(1) == out.dim(1) && rows.dim(0) == N &&
            (!weights || weights.shape() == rows.shape()),
        "sums %s of %s by %s with weights %s", out.shape(), in.shape(), rows.shape(),
        weights.shape());
}

void CheckRowProducts(Tensor out, Tensor a, Tensor b) {
  Check(a.shape() == b.shape() && out.elements() == a.dim(0), "row products %s of %s and %s",
        out.shape(), a.shape(), b.shape());
}

void CheckEmbeddingForward(Tensor out, Tensor tokens, Tensor table) {
  CheckEmbedding(out, tokens, table);
  Check(out.dtype() == table.dtype(), "embedding %s from a table %s", NameOf(out.dtype()),
        NameOf(table.dtype()));
}

void CheckEmbeddingBackward(Tensor dtable, Tensor tokens, Tensor dout) {
  CheckEmbedding(dout, tokens, dtable);
}

void CheckLogitStatistics(Tensor statistics, Tensor logits, Tensor targets) {
  const int64_t N = logits.dim(0);
  Check(statistics.elements() == 3 * N && targets.elements() == N,
        "statistics %s, targets %s of logits %s", statistics.shape(), targets.shape(),
        logits.shape());
}

void CheckMergeLogitStatistics(Tensor lse, Tensor sums, Tensor gathered, Tensor targets) {
  const int64_t N = gathered.dim(1);
  Check(gathered.dim(2) == 3 && lse.elements() == N && targets.elements() == N &&
            sums.elements() == 2,
        "lse %s, sums %s, targets %s of statistics %s", lse.shape(), sums.shape(), targets.shape(),
        gathered.shape());
}

void CheckLogitGradient(Tensor gradient, Tensor logits, Tensor targets, Tensor lse) {
  const int64_t N = logits.dim(0);
  Check(gradient.shape() == logits.shape() && targets.elements() == N && lse.elements() == N,
        "gradient %s, targets %s, lse %s of logits %s", gradient.shape(), targets.shape(),
        lse.shape(), logits.shape());
}

void CheckAdamW(const AdamWItem& item) {
  const int64_t elements = item.weight.elements();
  Check(item.m.elements() == elements && item.v.elements() == elements &&
            item.gradient.elements() == elements &&
            (!item.rounded || item.rounded.elements() == elements),
        "AdamW of weight %s, m %s, v %s, gradient %s, rounded %s", item.weight.shape(),
        item.m.shape(), item.v.shape(), item.gradient.shape(), item.rounded.shape());
}

void CheckSumsOfSquares(Tensor sums, absl::Span<const Tensor> tensors) {
  Check(sums.elements() == static_cast<int64_t>(tensors.size()), "sums %s of squares of %d tensors",
        sums.shape(), tensors.size());
}

void CheckAdd(Tensor out, Tensor a) {
  Check(out.elements() == a.elements(), "sum of %s and %s", out.shape(), a.shape());
}

void CheckCast(Tensor out, Tensor in) {
  Check(out.elements() == in.elements(), "cast of %s to %s", in.shape(), out.shape());
}

}  // namespace twinstream
