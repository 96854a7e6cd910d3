// Tokens on their way to the experts and back; the experts' products are with the other products.
#include "tests/benchmarks/ops/op_benchmark.h"

namespace twinstream::benchmarks {
namespace {

struct MoeShape {
  int64_t N, C, F, E, k;
  DType activation;
};

// Routed: choices, rows and weights are those of random logits.
RoutingTensors Routing(Operands& memory, const MoeShape& s) {
  const auto integers = [&](const Shape& shape) { return memory.Zeros(DType::kI32, shape); };
  const RoutingTensors t = {.probabilities = memory.Random(DType::kF32, {s.N, s.E}),
                            .lse = memory.Zeros(DType::kF32, {s.N}),
                            .experts = integers({s.N, s.k}),
                            .weights = memory.Zeros(DType::kF32, {s.N, s.k}),
                            .rows = integers({s.N, s.k}),
                            .choices = integers({s.N * s.k}),
                            .counts = integers({s.E}),
                            .statistics = memory.Zeros(DType::kF64, {2 * s.E + 1})};
  memory.ops().RouteTokens(t);
  return t;
}

PreparedOp PrepareRouting(Operands& memory, const MoeShape& s) {
  const RoutingTensors t = Routing(memory, s);
  return [=, &ops = memory.ops()] { ops.RouteTokens(t); };
}

PreparedOp PrepareRouterBackward(Operands& memory, const MoeShape& s) {
  const RoutingTensors t = Routing(memory, s);
  const Tensor weighted = memory.Zeros(DType::kF32, {s.N * s.k});
  return [=, &ops = memory.ops()] { ops.RouterBackward(t, weighted, {}); };
}

enum class Weights { kNone, kRouters };

PreparedOp PrepareGather(Operands& memory, const MoeShape& s, Weights weights) {
  const RoutingTensors t = Routing(memory, s);
  const Tensor weight = weights == Weights::kRouters ? t.weights : Tensor();
  const Tensor out = memory.Zeros(s.activation, {s.N * s.k, s.C}),
               in = memory.Random(s.activation, {s.N, s.C});
  return [=, &ops = memory.ops()] { ops.GatherRows(out, in, t.choices, weight); };
}

PreparedOp PrepareCombine(Operands& memory, const MoeShape& s, Weights weights) {
  const RoutingTensors t = Routing(memory, s);
  const Tensor weight = weights == Weights::kRouters ? t.weights : Tensor();
  const Tensor out = memory.Zeros(s.activation, {s.N, s.C}),
               in = memory.Random(s.activation, {s.N * s.k, s.C});
  return [=, &ops = memory.ops()] { ops.CombineRows(out, in, t.rows, weight); };
}

PreparedOp PrepareRowProducts(Operands& memory, const MoeShape& s) {
  const Tensor a = memory.Random(s.activation, {s.N * s.k, s.F}),
               b = memory.Random(s.activation, {s.N * s.k, s.F}),
               out = memory.Zeros(DType::kF32, {s.N * s.k});
  return [=, &ops = memory.ops()] { ops.RowProducts(out, a, b); };
}

}  // namespace

std::vector<OpBenchmark> MoeBenchmarks(const OpShape& shape, DType activation) {
  const MoeShape s = {.N = shape.rows(),
                      .C = shape.model.hidden(),
                      .F = shape.model.ffn(),
                      .E = shape.moe.experts(),
                      .k = shape.moe.top_k(),
                      .activation = activation};
  const auto on = [=](auto prepare, auto... arguments) {
    return [=](Operands& memory) { return prepare(memory, s, arguments...); };
  };
  std::vector<OpBenchmark> benchmarks = {
      {"GatherRows/plain", activation, on(PrepareGather, Weights::kNone)},
      {"GatherRows/weighted", activation, on(PrepareGather, Weights::kRouters)},
      {"CombineRows/plain", activation, on(PrepareCombine, Weights::kNone)},
      {"CombineRows/weighted", activation, on(PrepareCombine, Weights::kRouters)},
      {"RowProducts", activation, on(PrepareRowProducts)}};
  if (activation == DType::kF32) {
    benchmarks.push_back({"RouteTokens", activation, on(PrepareRouting)});
    benchmarks.push_back({"RouterBackward", activation, on(PrepareRouterBackward)});
  }
  return benchmarks;
}

}  // namespace twinstream::benchmarks
