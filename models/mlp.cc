#include "models/mlp.h"

#include "absl/strings/str_cat.h"
#include "models/initialization.h"

namespace twinstream {
namespace {

enum SavedIndex : size_t { kUp, kActivation };

}  // namespace

Mlp::Mlp(ModelContext& context, int64_t layer) : context_(context) {
  const ModelSpec& model = context.model;
  const int64_t F = model.ffn(), C = model.hidden();
  const Range columns = SplitEvenly(F, context.region.size(), context.region.rank());
  width_ = columns.size();
  const std::string prefix = absl::StrCat("layers.", layer, ".mlp.");
  const Shape up = {2 * F, C}, down = {C, F};  // rows of up: all values, then all gates
  up_ = &context.parameters.Declare(
      {.name = prefix + "up.weight",
       .global = up,
       .boxes = {{Box::Range(up, 0, columns.begin, columns.end)},
                 {Box::Range(up, 0, F + columns.begin, F + columns.end)}},
       .init_std = InitialStd(model, WeightRole::kMlpUp, layer),
       .first_overwrites = true});
  down_ = &context.parameters.Declare({.name = prefix + "down.weight",
                                       .global = down,
                                       .boxes = {{Box::Range(down, 1, columns.begin, columns.end)}},
                                       .init_std = InitialStd(model, WeightRole::kMlpDown, layer),
                                       .first_overwrites = true});
}

std::vector<TensorSpec> Mlp::SavedSpecs() const {
  return {{"up", context_.activation, {context_.tokens(), 2 * width_}},
          {"activation", context_.activation, {context_.tokens(), width_}}};
}

int64_t Mlp::ScratchBytes() const { return BytesFor({SavedSpecs()[kActivation]}); }

void Mlp::ProjectIn(Tensor h, Saved saved) {
  context_.ops.Matmul(saved[kUp], h, up_->value, {.transpose_b = true});
}

void Mlp::Core(Saved saved) { context_.ops.SwiGluForward(saved[kActivation], saved[kUp]); }

void Mlp::ProjectOut(Tensor o, Saved saved) {
  context_.ops.Matmul(o, saved[kActivation], down_->value, {.transpose_b = true});
}

void Mlp::BackwardInput(Tensor d_o, Tensor dh, Saved saved) {
  ScratchScope scope(*context_.scratch);
  const Tensor d_activation =
      context_.scratch->Allocate(context_.activation, saved[kActivation].shape());
  context_.ops.Matmul(d_activation, d_o, down_->value, {});
  context_.ops.SwiGluBackward(saved[kUp], d_activation,
                              saved[kUp]);  // in place: BackwardWeight needs the gradient
  context_.ops.Matmul(dh, saved[kUp], up_->value, {});
}

void Mlp::BackwardWeight(Tensor h, Tensor d_o, Saved saved) {
  context_.ops.Matmul(up_->gradient, saved[kUp], h,
                      {.transpose_a = true, .accumulate = up_->AddsToGradient()});
  context_.ops.Matmul(down_->gradient, d_o, saved[kActivation],
                      {.transpose_a = true, .accumulate = down_->AddsToGradient()});
}

}  // namespace twinstream
