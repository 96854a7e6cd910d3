// Products with every matrix of a model: forward, gradient of the input, gradient of the weight.
#include "absl/strings/str_cat.h"
#include "tests/benchmarks/ops/op_benchmark.h"

namespace twinstream::benchmarks {
namespace {

// A weight [outputs, inputs] and the rows that meet it in one product.
struct Matrix {
  std::string name;
  int64_t rows, outputs, inputs;
  DType result;  // of the forward product, and of the gradient of the rows
  MatmulOptions input_gradient = {};
  int64_t groups = 1;  // experts: each has a weight, and its share of the rows
};

std::vector<Matrix> MatricesOf(const OpShape& shape, DType activation) {
  const ModelSpec& model = shape.model;
  const int64_t N = shape.rows(), C = model.hidden(), F = model.ffn(), D = model.head_dim(),
                H = model.heads(), K = model.kv_heads();
  const int64_t experts = shape.moe.experts(), routed_rows = N * shape.moe.top_k();
  return {
      {"qkv", N, (H + 2 * K) * D, C, activation},
      {"out", N, C, H * D, activation},
      {"up", N, 2 * F, C, activation},
      {"down", N, C, F, activation},
      // The gradients of all panels are added up.
      {"head_panel", shape.logits.rows, shape.logits.columns, C, DType::kF32, {.accumulate = true}},
      {"experts_up", routed_rows, 2 * F, C, activation, {}, experts},
      {"experts_down", routed_rows, C, F, activation, {}, experts}};
}

PreparedOp Prepared(const Ops& ops, int64_t groups, Tensor out, Tensor a, Tensor b,
                    MatmulOptions options) {
  if (groups == 1) return [=, &ops] { ops.Matmul(out, a, b, options); };
  const std::vector<int64_t> rows_of_group(static_cast<size_t>(groups), a.dim(0) / groups);
  return [=, &ops] { ops.GroupedMatmul(out, a, b, rows_of_group, options); };
}

}  // namespace

std::vector<OpBenchmark> ProductBenchmarks(const OpShape& shape, DType activation) {
  std::vector<OpBenchmark> benchmarks;
  for (const Matrix& m : MatricesOf(shape, activation)) {
    const Shape input = {m.rows, m.inputs}, output = {m.rows, m.outputs},
                weight = {m.groups * m.outputs, m.inputs};
    const auto add = [&](const char* name, auto prepare) {
      benchmarks.push_back(
          {absl::StrCat(m.groups == 1 ? "Matmul/" : "GroupedMatmul/", m.name, "/", name),
           activation, prepare});
    };
    add("forward", [=](Operands& memory) {
      return Prepared(memory.ops(), m.groups, memory.Zeros(m.result, output),
                      memory.Random(activation, input), memory.Random(activation, weight),
                      {.transpose_b = true});
    });
    add("input_gradient", [=](Operands& memory) {
      return Prepared(memory.ops(), m.groups, memory.Zeros(m.result, input),
                      memory.Random(activation, output), memory.Random(activation, weight),
                      m.input_gradient);
    });
    add("weight_gradient", [=](Operands& memory) {
      return Prepared(memory.ops(), m.groups, memory.Zeros(DType::kF32, weight),
                      memory.Random(activation, output), memory.Random(activation, input),
                      {.transpose_a = true});
    });
  }
  return benchmarks;
}

}  // namespace twinstream::benchmarks
