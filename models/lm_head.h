// LmHead: vocabulary product and cross-entropy, vocabulary split over the tensor ranks. Works
// through blocks of rows, whose logits it holds in panels of columns, so that logits of more than a
// block never exist on any rank. Logits and statistics are float32; the logits'
// gradient has the dtype of activations.
#pragma once

#include "models/context.h"

namespace twinstream {

// head.weight [V, C]; a tied head uses the embedding's parameter instead.
Parameter& DeclareHead(ModelContext& context);

// How `tokens` rows of logits, of `columns` columns each, are cut.
struct LogitPanels {
  int64_t rows;     // of a block
  int64_t panels;   // of a block
  int64_t columns;  // of a panel; the last ones may have fewer
};
// In the host's memory for the caches of its cores. On a device with memory of its own for few,
// large operations: one panel, and as many rows as 512 MiB hold.
LogitPanels CutLogits(const Device& device, int64_t tokens, int64_t columns);

class LmHead {
 public:
  LmHead(ModelContext& context, Parameter& weight);

  int64_t ScratchBytes() const;
  // h: full [N, C]; targets: [N] i32, -1: no target. sums: [2] f64 += cross-entropy and logsumexp^2
  // over the targets.
  void Loss(Tensor h, Tensor targets, Tensor sums) const;
  // The same, and the gradient of gradient_scale * (cross-entropy + z_loss * logsumexp^2), summed
  // over targets: accumulated into the weight's, and this rank's addend of dh in h's place.
  void LossAndGradient(Tensor h, Tensor targets, Tensor sums, float z_loss,
                       float gradient_scale) const;
  // logits: [n, V] of h [n, C], all of the vocabulary on every tensor rank.
  void Logits(Tensor h, Tensor logits) const;

 private:
  // Logits, softmax statistics and log-sum-exp of some rows, in scratch.
  struct Block {
    Tensor logits;  // [panels, rows * columns of a panel]
    Tensor lse;     // [rows]
  };
  Block ForwardBlock(Tensor h, Tensor targets, Tensor sums) const;
  // Rows of the own weight that make panel `panel`. The last ones may be none.
  Range Panel(int64_t panel) const;
  Tensor LogitsOf(const Block& block, int64_t panel) const;  // [rows, columns]
  Tensor GradientOf(Tensor logits) const;
  int64_t first_row() const { return weight_.spec.boxes[0].box.begin[0]; }

  ModelContext& context_;
  Parameter& weight_;
  LogitPanels cut_;  // the same on every tensor rank
};

}  // namespace twinstream
