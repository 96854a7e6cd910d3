// The sites between residual blocks, by the rules of models/residual_plan.
#include "absl/strings/str_cat.h"
#include "models/residual_plan.h"
#include "tests/benchmarks/ops/op_benchmark.h"

namespace twinstream::benchmarks {
namespace {

// The write of one block and the read of the next.
struct SiteRule {
  BlockRule before, after;
  int streams = 1;

  ResidualSite site() const {
    return {
        .read_before = &before.read.read, .write = &before.write.write, .read = &after.read.read};
  }
};

// Before block `block`.
SiteRule RuleAt(const ResidualPlan& plan, size_t block) {
  return {plan.blocks[block - 1], plan.blocks[block], plan.streams};
}

// Whether two sites do the same to a row, whatever the gains.
bool SameWork(const SiteRule& a, const SiteRule& b) {
  const auto same_read = [](const ResidualRead& r, const ResidualRead& s) {
    return r.x == s.x && r.base_norm == s.base_norm && r.y == s.y && r.input_norm == s.input_norm;
  };
  const ResidualWrite &v = a.before.write.write, &w = b.before.write.write;
  return same_read(a.before.read.read, b.before.read.read) &&
         same_read(a.after.read.read, b.after.read.read) && v.y == w.y &&
         v.output_norm == w.output_norm;
}

ResidualForwardTensors ForwardTensors(Operands& memory, const SiteRule& rule, const Shape& stream,
                                      DType activation) {
  const int64_t N = stream[0], C = stream[1];
  const auto weight = [&] { return memory.Random(DType::kF32, {C}); };
  ResidualForwardTensors t = {.x = memory.Random(activation, stream),
                              .o = memory.Random(activation, stream),
                              .x_weight_before = weight(),
                              .scales_before = memory.Random(DType::kF32, {kResidualScales, N}),
                              .output_weight = weight(),
                              .x_out = memory.Zeros(activation, stream),
                              .x_weight = weight(),
                              .y_weight = weight(),
                              .input_weight = weight(),
                              .scales = memory.Zeros(DType::kF32, {kResidualScales, N}),
                              .h = memory.Zeros(activation, stream)};
  if (rule.streams == 2) {
    t.y = memory.Random(activation, stream);
    t.y_out = memory.Zeros(activation, stream);
  }
  return t;
}

PreparedOp PrepareForward(Operands& memory, const SiteRule& rule, const Shape& stream,
                          DType activation) {
  const ResidualForwardTensors t = ForwardTensors(memory, rule, stream, activation);
  return [=, &ops = memory.ops()] { ops.ResidualForward(rule.site(), t); };
}

PreparedOp PrepareBackward(Operands& memory, const SiteRule& rule, const Shape& stream,
                           DType activation) {
  const ResidualForwardTensors f = ForwardTensors(memory, rule, stream, activation);
  memory.ops().ResidualForward(rule.site(), f);
  const auto zeros = [&](Tensor like) { return memory.Zeros(like.dtype(), like.shape()); };
  // d_o and h take the streams' places, as in TransformerStage. Weights of zero keep what the next
  // call finds there from shrinking to denormal numbers.
  const ResidualBackwardTensors t = {.dx = zeros(f.x_out),
                                     .dy = f.y_out ? zeros(f.y_out) : Tensor(),
                                     .dh = zeros(f.h),
                                     .x = f.x_out,
                                     .y = f.y_out,
                                     .x_weight = zeros(f.x_weight),
                                     .y_weight = zeros(f.y_weight),
                                     .input_weight = zeros(f.input_weight),
                                     .scales = f.scales,
                                     .dx_weight = zeros(f.x_weight),
                                     .dy_weight = zeros(f.y_weight),
                                     .dinput_weight = zeros(f.input_weight),
                                     .o = f.o,
                                     .output_weight = f.output_weight,
                                     .doutput_weight = zeros(f.output_weight),
                                     .d_o = f.x_out,
                                     .h = f.y_out};
  return [=, &ops = memory.ops()] { ops.ResidualBackward(rule.site(), t); };
}

}  // namespace

std::vector<OpBenchmark> ResidualBenchmarks(const OpShape& shape, DType activation) {
  const Shape stream = {shape.rows(), shape.model.hidden()};
  std::vector<OpBenchmark> benchmarks;
  for (const ModelSpec::Residual scheme :
       {ModelSpec::PRE_NORM, ModelSpec::POST_NORM, ModelSpec::SIAMESE_HYBRID_PRE,
        ModelSpec::SIAMESE_POST_PRE}) {
    ModelSpec model = shape.model;
    model.set_residual(scheme);
    const ResidualPlan plan = MakeResidualPlan(model);
    const auto add = [&](const char* block, const SiteRule& rule) {
      const std::string name = absl::StrCat("/", ModelSpec::Residual_Name(scheme), "/", block);
      benchmarks.push_back({"ResidualForward" + name, activation, [=](Operands& memory) {
                              return PrepareForward(memory, rule, stream, activation);
                            }});
      benchmarks.push_back({"ResidualBackward" + name, activation, [=](Operands& memory) {
                              return PrepareBackward(memory, rule, stream, activation);
                            }});
    };
    // Of the second layer: the first has rules of its own.
    const SiteRule attention = RuleAt(plan, 2), mlp = RuleAt(plan, 3);
    add("attention", attention);
    if (!SameWork(attention, mlp)) add("mlp", mlp);
  }
  return benchmarks;
}

}  // namespace twinstream::benchmarks
