#include "models/lm_head.h"

#include <algorithm>

#include "models/initialization.h"

namespace twinstream {
namespace {

// Logits of one block: 8 MiB of float32 stay in a last-level cache between the product and the
// softmax, and enough rows remain for the products to run at full speed.
constexpr int64_t kBlockElements = 2 << 20;
constexpr int64_t kSmallestBlock = 128;  // rows

}  // namespace

Parameter& DeclareHead(ModelContext& context) {
  const Shape shape = {context.model.vocabulary(), context.hidden()};
  const Range rows = SplitEvenly(shape[0], context.region.size(), context.region.rank());
  return context.parameters.Declare({.name = "head.weight",
                                     .global = shape,
                                     .boxes = {{Box::Range(shape, 0, rows.begin, rows.end)}},
                                     .init_std = InitialStd(context.model, WeightRole::kHead, 0)});
}

LmHead::LmHead(ModelContext& context, Parameter& weight) : context_(context), weight_(weight) {
  const int64_t columns = SplitEvenly(context.model.vocabulary(), context.region.size(), 0).size();
  block_rows_ = std::min(context.tokens(), std::max(kSmallestBlock, kBlockElements / columns));
}

int64_t LmHead::ScratchBytes() const {
  const int64_t size = context_.region.size();
  const bool in_place = context_.activation == DType::kF32;  // GradientOf
  const Shape logits = {block_rows_, SplitEvenly(context_.model.vocabulary(), size, 0).size()};
  return BytesFor({{"logits", DType::kF32, logits},
                   {"statistics", DType::kF32, {size, block_rows_, 3}},
                   {"lse", DType::kF32, {block_rows_}},
                   {"gradient", context_.activation, in_place ? Shape{0} : logits}});
}

LmHead::Block LmHead::ForwardBlock(Tensor h, Tensor targets, Tensor sums) const {
  const Ops& ops = context_.ops;
  const TensorRegion& region = context_.region;
  const int64_t rows = h.dim(0), columns = weight_.rows();
  const Block block = {
      .logits = context_.scratch->Allocate(DType::kF32, {rows, columns}),
      .statistics = context_.scratch->Allocate(DType::kF32, {region.size(), rows, 3}),
      .lse = context_.scratch->Allocate(DType::kF32, {rows})};
  ops.Matmul(block.logits, h, weight_.value, {.transpose_b = true});
  ops.LogitStatistics(block.statistics.At(region.rank()), block.logits, targets, first_row());
  region.Gather(block.statistics, PieceCounts(static_cast<size_t>(region.size()), rows * 3));
  ops.MergeLogitStatistics(block.lse, sums, block.statistics, targets);
  return block;
}

// Where the gradient of a block's logits goes: into their place if it is as wide as they are.
Tensor LmHead::GradientOf(Tensor logits) const {
  if (context_.activation == logits.dtype()) return logits;
  return context_.scratch->Allocate(context_.activation, logits.shape());
}

void LmHead::Loss(Tensor h, Tensor targets, Tensor sums) const {
  for (int64_t begin = 0; begin < h.dim(0); begin += block_rows_) {
    const int64_t end = std::min(begin + block_rows_, h.dim(0));
    ScratchScope scope(*context_.scratch);
    ForwardBlock(h.Rows(begin, end), targets.Rows(begin, end), sums);
  }
}

void LmHead::LossAndGradient(Tensor h, Tensor targets, Tensor sums, float z_loss,
                             float gradient_scale) const {
  const Ops& ops = context_.ops;
  for (int64_t begin = 0; begin < h.dim(0); begin += block_rows_) {
    const int64_t end = std::min(begin + block_rows_, h.dim(0));
    ScratchScope scope(*context_.scratch);
    const Tensor rows = h.Rows(begin, end), row_targets = targets.Rows(begin, end);
    const Block block = ForwardBlock(rows, row_targets, sums);
    const Tensor gradient = GradientOf(block.logits);
    ops.LogitGradient(gradient, block.logits, row_targets, block.lse, first_row(),
                      {.z_loss = z_loss, .total = gradient_scale});
    ops.Matmul(weight_.gradient, gradient, rows, {.transpose_a = true, .accumulate = true});
    ops.Matmul(rows, gradient, weight_.value, {});
  }
}

void LmHead::Logits(Tensor h, Tensor logits) const {
  const TensorRegion& region = context_.region;
  const int64_t V = context_.model.vocabulary();
  PieceCounts counts;
  for (int r = 0; r < region.size(); ++r) counts.push_back(SplitEvenly(V, region.size(), r).size());
  for (int64_t n = 0; n < h.dim(0); ++n) {
    const Tensor row = logits.Rows(n, n + 1).Reshape({V, 1});
    const Tensor own =
        row.Rows(first_row(), first_row() + weight_.rows()).Reshape({1, weight_.rows()});
    context_.ops.Matmul(own, h.Rows(n, n + 1), weight_.value, {.transpose_b = true});
    region.Gather(row, counts);
  }
}

}  // namespace twinstream
