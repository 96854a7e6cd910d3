// TransformerStage: a contiguous run of layers on one rank, with the embedding on the first stage
// and the head on the last. One forward and one backward for every residual scheme: the plan's
// table decides what a site does.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/activation_layout.h"
#include "models/context.h"
#include "models/embedding.h"
#include "models/layer.h"
#include "models/lm_head.h"
#include "models/residual_site.h"
#include "parallel/stage.h"

namespace twinstream {

struct StageOptions {
  Range layers;                    // of the model
  bool first = true, last = true;  // holds the embedding, the head
  float z_loss = 0;
  float gradient_scale = 1;     // of each target's loss: 1 / targets of the global batch
  float micro_batch_share = 1;  // of the auxiliary losses: 1 / micro-batches of a data rank
  // What the forward does not keep: NONE: nothing but RebuildsInput's. SELECTIVE: what comes
  // without a matrix product from the streams and the blocks' first products: h, attention's core,
  // the activation. FULL: all but the streams between layers.
  ParallelSpec::Recompute recompute = ParallelSpec::NONE;
};

class TransformerStage final : public Stage {
 public:
  enum class Pass { kTraining, kEvaluation, kNextToken };

  // Declares the stage's parameters. `context` outlives the stage.
  TransformerStage(ModelContext& context, const StageOptions& options);

  // Indices of the stage's parameters in the context's store.
  Range parameters() const { return parameters_; }
  // The most that Forward and backward allocate from the context's scratch.
  int64_t ScratchBytes() const;

  // What the next passes work on: tokens and targets [M, N] i32, read on the first and the last
  // stage. sums: [2] f64, on the last stage: += cross-entropy and logsumexp^2 over the targets.
  void SetBatch(Pass pass, Tensor tokens, Tensor targets, Tensor sums);
  // kNextToken: logits [1, V] of the row after whose token the model is asked.
  void SetNextToken(int64_t row, Tensor logits);

  TensorSpec BoundarySpec() const override;
  bool has_previous() const override { return !options_.first; }
  bool has_next() const override { return !options_.last; }
  std::vector<TensorSpec> SavedSpecs() const override { return layout_.SlotSpecs(); }
  void Forward(int micro_batch, Slot& slot) override;
  void BackwardInput(int micro_batch, Slot& slot) override;
  void BackwardWeight(int micro_batch, Slot& slot) override;

 private:
  size_t sites() const { return sites_.size(); }  // blocks + 1
  size_t blocks() const { return blocks_.size(); }
  std::vector<TensorSpec> SiteSpecs(size_t site) const;
  bool KeepsOfSite(size_t site, size_t entry) const;
  bool KeepsOfBlock(size_t block, size_t entry) const;
  SiteTensors SiteIn(const Slot& slot, size_t site) const;
  bool StoresY(size_t site) const;  // a stream, or a y inside a layer
  bool RebuildsInput(size_t site) const;
  Tensor RebuiltInput(const Slot& slot, size_t site) const;  // h, or absent where that is kept
  Tensor AllocateFull() const;
  Saved BlockSaved(size_t block) const;
  void RunBlock(const Slot& slot, size_t block, Tensor scratch_o);
  void Recompute(const Slot& slot, size_t block);
  Tensor OutputGradient(const Slot& slot, size_t block) const;  // d_o of a block, full [N, C]
  // Of [S, n, C]; absent beyond the scheme's streams.
  Tensor Stream(Tensor streams, int stream) const;
  // What the observer hears: before a part's values are used, and after its last gradient.
  void UseValues(int micro_batch, Range parameters) const;
  void FinishGradients(int micro_batch, Range parameters) const;
  void RunHead(int micro_batch, Tensor h);
  void BackwardBlockWeight(int micro_batch, const Slot& slot, size_t block);
  Tensor InnerStreamGradient();  // [n, C], in scratch
  void BackwardEmbedding(int micro_batch, Tensor dx, Tensor dy);

  ModelContext& context_;
  StageOptions options_;
  Range parameters_;
  // The parts of parameters_, in this order: embedding and first site; each block with the site
  // after it; a head of its own.
  Range first_parameters_, head_parameters_;
  std::vector<Range> block_parameters_;
  int streams_;
  std::vector<std::unique_ptr<StreamSite>> sites_;
  std::vector<std::unique_ptr<Layer>> blocks_;
  ActivationLayout layout_;
  std::vector<size_t> site_begin_, block_begin_;  // index of the first tensor in layout_
  Saved saved_;                                   // all of layout_ in the pass under way
  std::optional<Embedding> embedding_;
  std::optional<LmHead> head_;

  Pass pass_ = Pass::kTraining;
  Tensor tokens_, targets_, sums_, logits_;
  int64_t next_token_row_ = 0;
};

}  // namespace twinstream
