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

// Layers of MIX_LN (arXiv 2412.13795) that are Post-Norm.
int64_t PostNormLayers(const ModelSpec& model) { return (model.layers() + 3) / 4; }

// h = N(x) with a weight of any name; base x.
ReadRule NormRead(const std::string& weight) {
  return {.read = {.x = X::kNorm}, .x_weight = weight};
}

// h = N_x(x); x += o
BlockRule PreNorm(int64_t block) { return {.read = NormRead(Prefix(block) + "x_norm.weight")}; }

// h = x, base x, of a stream that the block before left as N_x(x). A stream is stored before its
// norm, so the norm that a block's write ends with is taken by the next read: its weight belongs to
// the block before. The embedding is read as it is.
ReadRule PostNormRead(int64_t block) {
  if (block == 0) return {.read = {.x = X::kBase}};
  return {.read = {.x = X::kBase, .base_norm = true},
          .x_weight = Prefix(block - 1) + "x_norm.weight"};
}

// h = x; x = N_x(x + o)
BlockRule PostNorm(int64_t block) { return {.read = PostNormRead(block)}; }

// h = x; x = N_x(alpha x + o), alpha = (2 L)^(1/4) (DeepNet, arXiv 2203.00555).
BlockRule DeepNorm(const ModelSpec& model, int64_t block) {
  const double alpha = std::pow(2.0 * static_cast<double>(model.layers()), 0.25);
  return {.read = PostNormRead(block),
          .write = {.write = {.base_gain = static_cast<float>(alpha)}}};
}

// Attention: h = x (layer 0: N_x(x)); x += o. MLP: x = N_x(x); h = x; x += o (arXiv 2503.04598).
BlockRule HybridNorm(int64_t block) {
  const std::string weight = Prefix(block) + "x_norm.weight";
  if (block == 0) return {.read = NormRead(weight)};
  if (block % 2 == 0) return {.read = {.read = {.x = X::kBase}}};
  return {.read = {.read = {.x = X::kBase, .base_norm = true}, .x_weight = weight}};
}

// Attention: h = x (layer 0: N_in(x)); z = N_x(x + o). MLP: h = z; x = N_x(x + o), x being the
// layer's input (arXiv 2601.22580). y holds z before its norm.
BlockRule SpanNorm(int64_t block) {
  if (block % 2 == 1) {
    return {.read = {.read = {.x = X::kNone, .y = true},
                     .y_weight = Prefix(block - 1) + "x_norm.weight"}};
  }
  BlockRule rule = {.read = PostNormRead(block), .write = {.write = {.x_gain = 0, .y = Y::kSet}}};
  if (block == 0) rule.read = NormRead(Prefix(block) + "input_norm.weight");
  return rule;
}

// h = N_in(x); x += N_out(o), the embedding normed too (arXiv 2502.02732).
BlockRule PeriNorm(int64_t block) {
  BlockRule rule = {.read = NormRead(Prefix(block) + "input_norm.weight"),
                    .write = {.write = {.output_norm = true},
                              .output_weight = Prefix(block) + "output_norm.weight"}};
  if (block == 0) {
    rule.read = {.read = {.x = X::kBase, .base_norm = true, .input_norm = true},
                 .x_weight = "embedding.norm.weight",
                 .input_weight = Prefix(block) + "input_norm.weight"};
  }
  return rule;
}

// What follows Post-Norm blocks, normed once more: h = N(N_x(x)), base N_x(x).
ReadRule NormAfterPostNorm(int64_t block, const std::string& weight) {
  ReadRule rule = PostNormRead(block);
  rule.read.input_norm = true;
  rule.input_weight = weight;
  return rule;
}

// Post-Norm first, Pre-Norm after.
BlockRule MixLn(const ModelSpec& model, int64_t block) {
  const int64_t post_norm_blocks = 2 * PostNormLayers(model);
  if (block < post_norm_blocks) return PostNorm(block);
  if (block > post_norm_blocks) return PreNorm(block);
  return {.read = NormAfterPostNorm(block, Prefix(block) + "x_norm.weight")};
}

ReadRule MixLnFinal(const ModelSpec& model) {
  const std::string weight = "final.norm.weight";
  return PostNormLayers(model) == model.layers() ? NormAfterPostNorm(2 * model.layers(), weight)
                                                 : NormRead(weight);
}

// h = x; y += o; x = N_x(x + o) (arXiv 2304.14802). No block reads y.
BlockRule ResiDual(int64_t block) {
  return {.read = PostNormRead(block), .write = {.write = {.y = Y::kAdd}}};
}

// x + N_yf(y)
ReadRule ResiDualFinal(int64_t blocks) {
  ReadRule rule = PostNormRead(blocks);
  rule.read.y = true;
  rule.y_weight = "final.y_norm.weight";
  return rule;
}

// x = N_x(x); h = N_in(x + N_y(y)); x += o / c; y += o
BlockRule SiamesePostPre(int64_t block) {
  return {.read = {.read = {.x = X::kBase, .base_norm = true, .y = true, .input_norm = true},
                   .x_weight = Prefix(block) + "x_norm.weight",
                   .y_weight = Prefix(block) + "y_norm.weight",
                   .input_weight = Prefix(block) + "input_norm.weight"},
          .write = {.write = {.x_gain = SiameseGain(block / 2), .y = Y::kAdd}}};
}

// Attention: h = s . x + N_y(y), in layer 0 N_x(x) + N_y(y); MLP as in post-pre.
BlockRule SiameseHybridPre(int64_t block) {
  if (block % 2 == 1) return SiamesePostPre(block);
  const bool first = block == 0;
  return {.read = {.read = {.x = first ? X::kNorm : X::kScale, .y = true},
                   .x_weight = Prefix(block) + (first ? "x_norm.weight" : "x_scale"),
                   .y_weight = Prefix(block) + "y_norm.weight"},
          .write = {.write = {.x_gain = SiameseGain(block / 2), .y = Y::kAdd}}};
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
  const auto fill = [&](auto rule) {
    for (int64_t b = 0; b < blocks; ++b) plan.blocks.push_back(rule(b));
  };
  switch (model.residual()) {
    case ModelSpec::PRE_NORM:
      fill(PreNorm);
      plan.final = NormRead("final.norm.weight");
      return plan;
    case ModelSpec::POST_NORM:
      fill(PostNorm);
      plan.final = PostNormRead(blocks);
      return plan;
    case ModelSpec::DEEP_NORM:
      fill([&](int64_t block) { return DeepNorm(model, block); });
      plan.final = PostNormRead(blocks);
      return plan;
    case ModelSpec::HYBRID_NORM:
      plan.qkv_norm = true;
      fill(HybridNorm);
      plan.final = NormRead("final.norm.weight");
      return plan;
    case ModelSpec::SPAN_NORM:
      fill(SpanNorm);
      plan.final = PostNormRead(blocks);
      return plan;
    case ModelSpec::PERI_NORM:
      fill(PeriNorm);
      plan.final = NormRead("final.norm.weight");
      return plan;
    case ModelSpec::MIX_LN:
      fill([&](int64_t block) { return MixLn(model, block); });
      plan.final = MixLnFinal(model);
      return plan;
    case ModelSpec::RESI_DUAL:
      plan.streams = 2;
      fill(ResiDual);
      plan.final = ResiDualFinal(blocks);
      return plan;
    case ModelSpec::SIAMESE_POST_PRE:
      plan.streams = 2;
      fill(SiamesePostPre);
      plan.final = SiameseFinal();
      return plan;
    case ModelSpec::SIAMESE_HYBRID_PRE:
      plan.streams = 2;
      plan.qkv_norm = true;
      fill(SiameseHybridPre);
      plan.final = SiameseFinal();
      return plan;
  }
  Die(absl::StrCat("model.residual ", static_cast<int>(model.residual()), " has no plan"));
}

}  // namespace twinstream
