// One pass over activations, or over the weights of a layer.
#include "tests/benchmarks/ops/op_benchmark.h"

namespace twinstream::benchmarks {
namespace {

struct Extents {
  int64_t N, C, F;
  DType activation;

  Shape stream() const { return {N, C}; }
  Shape weight() const { return {2 * F, C}; }  // the largest of a layer
};

PreparedOp PrepareSwiGluForward(Operands& memory, const Extents& s) {
  const Tensor up = memory.Random(s.activation, {s.N, 2 * s.F}),
               out = memory.Zeros(s.activation, {s.N, s.F});
  return [=, &ops = memory.ops()] { ops.SwiGluForward(out, up); };
}

// The gradient takes the place of up, as in Mlp.
PreparedOp PrepareSwiGluBackward(Operands& memory, const Extents& s) {
  const Tensor up = memory.Random(s.activation, {s.N, 2 * s.F}),
               dout = memory.Zeros(s.activation, {s.N, s.F});
  return [=, &ops = memory.ops()] { ops.SwiGluBackward(up, dout, up); };
}

PreparedOp PrepareAdd(Operands& memory, const Extents& s) {
  const Tensor out = memory.Zeros(s.activation, s.stream()),
               a = memory.Random(s.activation, s.stream());
  return [=, &ops = memory.ops()] { ops.Add(out, a); };
}

PreparedOp PrepareCast(Operands& memory, const Extents& s, DType to, DType from) {
  const Tensor out = memory.Zeros(to, s.stream()), in = memory.Random(from, s.stream());
  return [=, &ops = memory.ops()] { ops.Cast(out, in); };
}

PreparedOp PrepareZero(Operands& memory, const Extents& s) {
  const Tensor out = memory.Zeros(DType::kF32, s.weight());
  return [=, &ops = memory.ops()] { ops.Zero(out); };
}

PreparedOp PrepareSumsOfSquares(Operands& memory, const Extents& s) {
  const Tensor values = memory.Random(DType::kF32, s.weight()),
               sum = memory.Zeros(DType::kF64, {1});
  return [=, &ops = memory.ops()] { ops.SumsOfSquares(sum, {values}); };
}

// In BF16 the update also writes the weight that products take.
PreparedOp PrepareAdamW(Operands& memory, const Extents& s) {
  AdamWItem item = {.weight = memory.Random(DType::kF32, s.weight()),
                    .m = memory.Zeros(DType::kF32, s.weight()),
                    .v = memory.Zeros(DType::kF32, s.weight()),
                    .gradient = memory.Random(DType::kF32, s.weight()),
                    .weight_decay = 0.1F};
  if (s.activation == DType::kBF16) item.rounded = memory.Zeros(DType::kBF16, s.weight());
  const AdamWOptions options = {
      .learning_rate = 1e-4F, .beta1 = 0.9F, .beta2 = 0.95F, .eps = 1e-8F};
  return [=, &ops = memory.ops()] { ops.AdamW(options, {item}); };
}

}  // namespace

std::vector<OpBenchmark> ElementwiseBenchmarks(const OpShape& shape, DType activation) {
  const Extents s = {.N = shape.rows(),
                     .C = shape.model.hidden(),
                     .F = shape.model.ffn(),
                     .activation = activation};
  const auto on = [=](auto prepare, auto... arguments) {
    return [=](Operands& memory) { return prepare(memory, s, arguments...); };
  };
  std::vector<OpBenchmark> benchmarks = {{"SwiGluForward", activation, on(PrepareSwiGluForward)},
                                         {"SwiGluBackward", activation, on(PrepareSwiGluBackward)},
                                         {"Add", activation, on(PrepareAdd)},
                                         {"AdamW", activation, on(PrepareAdamW)}};
  if (activation == DType::kF32) {
    benchmarks.push_back({"Zero", activation, on(PrepareZero)});
    benchmarks.push_back({"SumOfSquares", activation, on(PrepareSumsOfSquares)});
  } else {
    benchmarks.push_back({"Cast/narrow", activation, on(PrepareCast, activation, DType::kF32)});
    benchmarks.push_back({"Cast/widen", activation, on(PrepareCast, DType::kF32, activation)});
  }
  return benchmarks;
}

}  // namespace twinstream::benchmarks
