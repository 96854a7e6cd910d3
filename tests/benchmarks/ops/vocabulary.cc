// Both ends of a model: the embedding, and what becomes of a panel of logits.
#include "tests/benchmarks/ops/op_benchmark.h"

namespace twinstream::benchmarks {
namespace {

struct VocabularyShape {
  int64_t N, C, V;
  LogitPanels cut;
  DType activation;
};

constexpr int64_t kTokenStep = 5;  // divides no vocabulary: N <= V tokens differ

PreparedOp PrepareEmbeddingForward(Operands& memory, const VocabularyShape& s) {
  const Tensor tokens = memory.Integers({s.N}, kTokenStep, s.V),
               table = memory.Random(s.activation, {s.V, s.C}),
               out = memory.Zeros(s.activation, {s.N, s.C});
  return [=, &ops = memory.ops()] { ops.EmbeddingForward(out, tokens, table, 0); };
}

PreparedOp PrepareEmbeddingBackward(Operands& memory, const VocabularyShape& s) {
  const Tensor tokens = memory.Integers({s.N}, kTokenStep, s.V),
               dtable = memory.Zeros(DType::kF32, {s.V, s.C}),
               dout = memory.Random(s.activation, {s.N, s.C});
  return [=, &ops = memory.ops()] { ops.EmbeddingBackward(dtable, tokens, dout, 0); };
}

// Of a panel; the statistics of all panels of a block.
struct LogitOperands {
  Tensor logits, targets, statistics, lse, sums;
};

// With the statistics and log-sum-exp of a block whose panels are all alike.
LogitOperands Logits(Operands& memory, const VocabularyShape& s) {
  const LogitOperands t = {.logits = memory.Random(DType::kF32, {s.cut.rows, s.cut.columns}),
                           .targets = memory.Integers({s.cut.rows}, kTokenStep, s.V),
                           .statistics = memory.Zeros(DType::kF32, {s.cut.panels, s.cut.rows, 3}),
                           .lse = memory.Zeros(DType::kF32, {s.cut.rows}),
                           .sums = memory.Zeros(DType::kF64, {2})};
  for (int64_t panel = 0; panel < s.cut.panels; ++panel) {
    memory.ops().LogitStatistics(t.statistics.At(panel), t.logits, t.targets, 0);
  }
  memory.ops().MergeLogitStatistics(t.lse, t.sums, t.statistics, t.targets);
  return t;
}

PreparedOp PrepareStatistics(Operands& memory, const VocabularyShape& s) {
  const LogitOperands t = Logits(memory, s);
  const Tensor statistics = t.statistics.At(0);
  return [=, &ops = memory.ops()] { ops.LogitStatistics(statistics, t.logits, t.targets, 0); };
}

PreparedOp PrepareMerge(Operands& memory, const VocabularyShape& s) {
  const LogitOperands t = Logits(memory, s);
  return [=, &ops = memory.ops()] {
    ops.MergeLogitStatistics(t.lse, t.sums, t.statistics, t.targets);
  };
}

PreparedOp PrepareGradient(Operands& memory, const VocabularyShape& s) {
  const LogitOperands t = Logits(memory, s);
  const Tensor gradient =
      s.activation == t.logits.dtype() ? t.logits : memory.Zeros(s.activation, t.logits.shape());
  return
      [=, &ops = memory.ops()] { ops.LogitGradient(gradient, t.logits, t.targets, t.lse, 0, {}); };
}

}  // namespace

std::vector<OpBenchmark> VocabularyBenchmarks(const OpShape& shape, DType activation) {
  const VocabularyShape s = {.N = shape.rows(),
                             .C = shape.model.hidden(),
                             .V = shape.model.vocabulary(),
                             .cut = shape.logits,
                             .activation = activation};
  const auto on = [=](auto prepare) {
    return [=](Operands& memory) { return prepare(memory, s); };
  };
  std::vector<OpBenchmark> benchmarks = {
      {"EmbeddingForward", activation, on(PrepareEmbeddingForward)},
      {"EmbeddingBackward", activation, on(PrepareEmbeddingBackward)},
      {"LogitGradient", activation, on(PrepareGradient)}};
  if (activation == DType::kF32) {
    benchmarks.push_back({"LogitStatistics", activation, on(PrepareStatistics)});
    benchmarks.push_back({"MergeLogitStatistics", activation, on(PrepareMerge)});
  }
  return benchmarks;
}

}  // namespace twinstream::benchmarks
