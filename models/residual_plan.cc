#include "models/residual_plan.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace twinstream {
namespace {

using X = ResidualRead::X;
using Y = ResidualWrite::Y;

// SiameseNorm (arXiv 2602.08064) scales what a block adds to the x stream by 1 / c_i, c_i = sqrt(2
// (i + 1)) in layer i.
float SiameseGain(int64_t layer) {
  return static_cast<float>(1.0 / std::sqrt(2.0 * static_cast<double>(layer + 1)));
}

std::string Prefix(int64_t block) {
  return absl::StrCat("layers.", block / 2, block % 2 == 0 ? ".attention." : ".mlp.");
}

// h = N_x(x); x += o
BlockRule PreNorm(int64_t block) {
  return {.read = {.read = {.x = X::kNorm}, .x_weight = Prefix(block) + "x_norm.weight"}};
}

// h = x; x = N_x(x + o). The stream is stored before its norm, so the norm that a block's write
// ends with is taken by the next read: its weight belongs to the block before. The embedding is
// read as it is.
ReadRule PostNormRead(int64_t block) {
  if (block == 0) return {.read = {.x = X::kBase}};
  return {.read = {.x = X::kBase, .base_norm = true},
          .x_weight = Prefix(block - 1) + "x_norm.weight"};
}

// x = N_x(x); h = N_in(x + N_y(y)); x += o / c; y += o
BlockRule SiamesePostPre(int64_t block) {
  return {.read = {.read = {.x = X::kBase, .base_norm = true, .y = true, .input_norm = true},
                   .x_weight = Prefix(block) + "x_norm.weight",
                   .y_weight = Prefix(block) + "y_norm.weight",
                   .input_weight = Prefix(block) + "input_norm.weight"},
          .write = {.x_gain = SiameseGain(block / 2), .y = Y::kAdd}};
}

// Attention: h = s . x + N_y(y), in layer 0 N_x(x) + N_y(y); MLP as in post-pre.
BlockRule SiameseHybridPre(int64_t block) {
  if (block % 2 == 1) return SiamesePostPre(block);
  const bool first = block == 0;
  return {.read = {.read = {.x = first ? X::kNorm : X::kScale, .y = true},
                   .x_weight = Prefix(block) + (first ? "x_norm.weight" : "x_scale"),
                   .y_weight = Prefix(block) + "y_norm.weight"},
          .write = {.x_gain = SiameseGain(block / 2), .y = Y::kAdd}};
}

ReadRule SiameseFinal() {
  return {.read = {.x = X::kNorm, .y = true, .input_norm = true},
          .x_weight = "final.x_norm.weight",
          .y_weight = "final.y_norm.weight",
          .input_weight = "final.norm.weight"};
}

}  // namespace

ResidualPlan MakeResidualPlan(const ModelSpec& model) {
  ResidualPlan plan;
  const int64_t blocks = 2 * model.layers();
  switch (model.residual()) {
    case ModelSpec::PRE_NORM:
      for (int64_t b = 0; b < blocks; ++b) plan.blocks.push_back(PreNorm(b));
      plan.final = {.read = {.x = X::kNorm}, .x_weight = "final.norm.weight"};
      return plan;
    case ModelSpec::POST_NORM:
      for (int64_t b = 0; b < blocks; ++b) plan.blocks.push_back({.read = PostNormRead(b)});
      plan.final = PostNormRead(blocks);
      return plan;
    case ModelSpec::SIAMESE_POST_PRE:
      plan.streams = 2;
      for (int64_t b = 0; b < blocks; ++b) plan.blocks.push_back(SiamesePostPre(b));
      plan.final = SiameseFinal();
      return plan;
    case ModelSpec::SIAMESE_HYBRID_PRE:
      plan.streams = 2;
      plan.qkv_norm = true;
      for (int64_t b = 0; b < blocks; ++b) plan.blocks.push_back(SiameseHybridPre(b));
      plan.final = SiameseFinal();
      return plan;
    case ModelSpec::DEEP_NORM:
    case ModelSpec::HYBRID_NORM:
    case ModelSpec::SPAN_NORM:
    case ModelSpec::PERI_NORM:
    case ModelSpec::MIX_LN:
    case ModelSpec::RESI_DUAL:
      break;  // refused by job_features
  }
  Die(absl::StrCat("model.residual ", ModelSpec::Residual_Name(model.residual()), " has no plan"));
}

}  // namespace twinstream
