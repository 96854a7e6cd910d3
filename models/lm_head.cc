#include "models/lm_head.h"

#include <algorithm>

#include "models/initialization.h"

namespace twinstream {
namespace {

// Rows of a block in the host's memory. oneDNN copies the operands of a product into its own layout
// only where 1 / rows + 1 / columns is below 0.0038; on AVX2 the gradient of h without copies takes
// twice the time. 768 rows are enough for hidden 512. With 1024 the three products are 3 to 5 %
// faster than with 683: as many where their logits take little.
constexpr int64_t kFewestHostRows = 768, kMostHostRows = 1024;
constexpr int64_t kLittleBytes = int64_t{80} << 20;  // 768 rows of 50304 words take 147 MiB
constexpr int64_t kTileRows = 64;
// A panel stays in cache from its product to its softmax, and in the backward from its gradient to
// both products of that.
constexpr int64_t kPanelColumns = 1000;
// Of a block's logits on a device with memory of its own.
constexpr int64_t kMostBlockBytes = int64_t{512} << 20;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A row of a panel ends with a cache line, and the next one is not where caches have no more room:
// a multiple of 1 KiB away.
int64_t PanelColumns(int64_t columns, int64_t panels) {
  constexpr int64_t kLine = 16, kBadStride = 256;  // float32
  const int64_t even = DivideUp(DivideUp(columns, panels), kLine) * kLine;
  return panels > 1 && even % kBadStride == 0 ? even + kLine : even;
}

}  // namespace

Parameter& DeclareHead(ModelContext& context) {
  const Shape shape = {context.model.vocabulary(), context.hidden()};
  const Range rows = SplitEvenly(shape[0], context.region.size(), context.region.rank());
  return context.parameters.Declare({.name = "head.weight",
                                     .global = shape,
                                     .boxes = {{Box::Range(shape, 0, rows.begin, rows.end)}},
                                     .init_std = InitialStd(context.model, WeightRole::kHead, 0),
                                     .first_overwrites = true});
}

LogitPanels CutLogits(const Device& device, int64_t tokens, int64_t columns) {
  const int64_t panels = device.host_memory() ? DivideUp(columns, kPanelColumns) : 1;
  const int64_t panel_columns = PanelColumns(columns, panels);
  const int64_t row_bytes = panels * panel_columns * SizeOf(DType::kF32);
  const int64_t most_rows =
      device.host_memory() ? std::clamp(kLittleBytes / row_bytes, kFewestHostRows, kMostHostRows)
                           : std::max<int64_t>(1, kMostBlockBytes / row_bytes);
  const int64_t even = DivideUp(tokens, DivideUp(tokens, most_rows));
  return {.rows = std::min({tokens, most_rows, DivideUp(even, kTileRows) * kTileRows}),
          .panels = panels,
          .columns = panel_columns};
}

LmHead::LmHead(ModelContext& context, Parameter& weight)
    : context_(context),
      weight_(weight),
      cut_(CutLogits(context.device, context.tokens(),
                     SplitEvenly(context.model.vocabulary(), context.region.size(), 0).size())) {}

Range LmHead::Panel(int64_t panel) const {
  const int64_t columns = weight_.rows();
  return {std::min(columns, panel * cut_.columns), std::min(columns, (panel + 1) * cut_.columns)};
}

int64_t LmHead::ScratchBytes() const {
  const bool in_place = context_.activation == DType::kF32;  // GradientOf
  const int64_t panel = cut_.rows * cut_.columns;
  return BytesFor(
      {{"logits", DType::kF32, {cut_.panels, panel}},
       {"statistics", DType::kF32, {context_.region.size(), cut_.panels * cut_.rows, 3}},
       {"lse", DType::kF32, {cut_.rows}},
       {"gradient", context_.activation, {in_place ? 0 : panel}},
       {"dh", DType::kF32, {cut_.rows, context_.hidden()}}});
}

LmHead::Block LmHead::ForwardBlock(Tensor h, Tensor targets, Tensor sums) const {
  const Ops& ops = context_.ops;
  const TensorRegion& region = context_.region;
  const int64_t rows = h.dim(0);
  const Block block = {
      .logits = context_.scratch->Allocate(DType::kF32, {cut_.panels, rows * cut_.columns}),
      .lse = context_.scratch->Allocate(DType::kF32, {rows})};
  const Tensor statistics =
      context_.scratch->Allocate(DType::kF32, {region.size() * cut_.panels, rows, 3});
  for (int64_t panel = 0; panel < cut_.panels; ++panel) {
    const Range columns = Panel(panel);
    const Tensor logits = LogitsOf(block, panel);
    ops.Matmul(logits, h, weight_.value.Rows(columns.begin, columns.end), {.transpose_b = true});
    ops.LogitStatistics(statistics.At(region.rank() * cut_.panels + panel), logits, targets,
                        first_row() + columns.begin);
  }
  region.Gather(statistics,
                PieceCounts(static_cast<size_t>(region.size()), cut_.panels * rows * 3));
  ops.MergeLogitStatistics(block.lse, sums, statistics, targets);
  return block;
}

Tensor LmHead::LogitsOf(const Block& block, int64_t panel) const {
  const int64_t rows = block.lse.dim(0), columns = Panel(panel).size();
  return block.logits.At(panel).Rows(0, rows * columns).Reshape({rows, columns});
}

// Where the gradient of a panel's logits goes: into their place if it is as wide as they are.
Tensor LmHead::GradientOf(Tensor logits) const {
  if (context_.activation == logits.dtype()) return logits;
  return context_.scratch->Allocate(context_.activation, logits.shape());
}

void LmHead::Loss(Tensor h, Tensor targets, Tensor sums) const {
  for (int64_t begin = 0; begin < h.dim(0); begin += cut_.rows) {
    const int64_t end = std::min(begin + cut_.rows, h.dim(0));
    ScratchScope scope(*context_.scratch);
    ForwardBlock(h.Rows(begin, end), targets.Rows(begin, end), sums);
  }
}

void LmHead::LossAndGradient(Tensor h, Tensor targets, Tensor sums, float z_loss,
                             float gradient_scale) const {
  const Ops& ops = context_.ops;
  for (int64_t begin = 0; begin < h.dim(0); begin += cut_.rows) {
    const int64_t end = std::min(begin + cut_.rows, h.dim(0));
    ScratchScope scope(*context_.scratch);
    const Tensor rows = h.Rows(begin, end), row_targets = targets.Rows(begin, end);
    const Block block = ForwardBlock(rows, row_targets, sums);
    const bool add = weight_.AddsToGradient();
    // Not in h's place: the next panel's product needs h. Float32: panels' sums are not rounded.
    const Tensor dh = context_.scratch->Allocate(DType::kF32, rows.shape());
    for (int64_t panel = 0; panel < cut_.panels; ++panel) {
      ScratchScope panel_scope(*context_.scratch);
      const auto [first, last] = Panel(panel);
      const Tensor logits = LogitsOf(block, panel), gradient = GradientOf(logits);
      ops.LogitGradient(gradient, logits, row_targets, block.lse, first_row() + first,
                        {.z_loss = z_loss, .total = gradient_scale});
      ops.Matmul(weight_.gradient.Rows(first, last), gradient, rows,
                 {.transpose_a = true, .accumulate = add});
      ops.Matmul(dh, gradient, weight_.value.Rows(first, last), {.accumulate = panel > 0});
    }
    ops.Cast(rows, dh);
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
