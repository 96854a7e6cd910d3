#include "models/transformer_stage.h"

#include <algorithm>

#include "models/attention.h"
#include "models/mlp.h"
#include "models/moe.h"

namespace twinstream {
namespace {

// Saved tensors of a site, in this order; which of them exist depends on the site's place
// (SiteSpecs).
enum SiteIndex : size_t { kX, kY, kScales, kH, kOutput, kDOutput };

}  // namespace

TransformerStage::TransformerStage(ModelContext& context, const StageOptions& options)
    : context_(context), options_(options) {
  const ModelSpec& model = context.model;
  const ResidualPlan plan = MakeResidualPlan(model);
  streams_ = plan.streams;
  first_parameters_.begin = parameters_.begin = context.parameters.size();
  // A tied head on another stage than the embedding: both hold the weight, the first stage's is the
  // primary.
  const bool on_two_stages = model.tied_embeddings() && options.first != options.last;
  Parameter* embedding = nullptr;
  if (options.first || (options.last && model.tied_embeddings())) {
    embedding =
        &DeclareEmbedding(context, {.on_two_stages = on_two_stages, .primary = options.first});
  }
  if (options.first) embedding_.emplace(context, *embedding);

  const size_t begin = static_cast<size_t>(2 * options.layers.begin),
               end = static_cast<size_t>(2 * options.layers.end);
  for (size_t b = begin; b <= end; ++b) {
    const WriteRule* write = b == begin ? nullptr : &plan.blocks[b - 1].write;
    const ReadRule* read = b < end ? &plan.blocks[b].read : options.last ? &plan.final : nullptr;
    const StreamSite* before = sites_.empty() ? nullptr : sites_.back().get();
    sites_.push_back(std::make_unique<StreamSite>(context, before, write, read));
    (b == begin ? first_parameters_ : block_parameters_.back()).end = context.parameters.size();
    if (b == end) break;
    block_parameters_.push_back({context.parameters.size(), 0});
    const int64_t layer = static_cast<int64_t>(b / 2);
    if (b % 2 == 0) {
      blocks_.push_back(std::make_unique<Attention>(context, layer, plan.qkv_norm));
    } else if (model.has_moe()) {
      blocks_.push_back(std::make_unique<Moe>(context, layer, options.micro_batch_share));
    } else {
      blocks_.push_back(std::make_unique<Mlp>(context, layer));
    }
  }
  head_parameters_.begin = context.parameters.size();
  if (options.last) {
    head_.emplace(context, model.tied_embeddings() ? *embedding : DeclareHead(context));
  }

  head_parameters_.end = parameters_.end = context.parameters.size();

  for (size_t s = 0; s < sites(); ++s) {
    site_begin_.push_back(layout_.size());
    const std::vector<TensorSpec> site = SiteSpecs(s);
    for (size_t i = 0; i < site.size(); ++i) layout_.Add({site[i], s, KeepsOfSite(s, i)});
    block_begin_.push_back(layout_.size());
    if (s == blocks()) break;
    const std::vector<TensorSpec> block = blocks_[s]->SavedSpecs();
    for (size_t i = 0; i < block.size(); ++i) layout_.Add({block[i], s, KeepsOfBlock(s, i)});
  }
}

TensorSpec TransformerStage::BoundarySpec() const {
  const int64_t rows = context_.region.OwnRows(context_.tokens()).size();
  return {"streams", context_.activation, {streams_, rows, context_.hidden()}};
}

bool TransformerStage::StoresY(size_t site) const {
  return streams_ == 2 || sites_[site]->sets_y();
}

// Two streams need no more memory than one: h is not kept where it can take the place of a y that
// the site stores. The site's backward is the last to read y, row by row as it writes h. Not of
// sharded tokens: the backward would have to gather h once more.
bool TransformerStage::RebuildsInput(size_t site) const {
  return options_.recompute == ParallelSpec::NONE && site > 0 && site < blocks() && StoresY(site) &&
         !context_.region.shards_tokens();
}

Tensor TransformerStage::RebuiltInput(const Slot& slot, size_t site) const {
  return RebuildsInput(site) ? SiteIn(slot, site).y : Tensor();
}

// All sites have the same entries, so that indices stay simple; an entry that lives elsewhere
// has no elements.
std::vector<TensorSpec> TransformerStage::SiteSpecs(size_t site) const {
  const int64_t N = context_.tokens(), C = context_.hidden(), n = context_.region.OwnRows(N).size();
  const bool starts_stage = site == 0, ends_stage = site == blocks() && has_next();
  const bool in_boundary =
      (starts_stage && has_previous()) || ends_stage;  // x, y: slot.input or slot.output
  const bool embedded =
      starts_stage && !has_previous();  // x: the embedding's full [N, C]; y: the same memory
  const bool d_output = site < blocks() && context_.region.shards_tokens();
  const DType dtype = context_.activation;
  return {{"x",
           dtype,
           {in_boundary ? 0
            : embedded  ? N
                        : n,
            C}},
          {"y", dtype, {in_boundary || embedded || !StoresY(site) ? 0 : n, C}},
          {"scales", DType::kF32, {sites_[site]->keeps_scales() ? kResidualScales : 0, n}},
          {"h", dtype, {ends_stage ? 0 : N, C}},
          {"output", dtype, {sites_[site]->keeps_output() ? N : 0, C}},
          {"d_output", dtype, {d_output ? N : 0, C}}};
}

// A stage begins with a layer: even sites are the inputs of layers.
bool TransformerStage::KeepsOfSite(size_t site, size_t entry) const {
  switch (static_cast<SiteIndex>(entry)) {
    case kX:
    case kY:
    case kScales:
    case kOutput:
      return options_.recompute != ParallelSpec::FULL || site % 2 == 0;
    case kH:  // the head leaves a gradient in its own
      return site == blocks() || (options_.recompute == ParallelSpec::NONE && !RebuildsInput(site));
    case kDOutput:
      return options_.recompute == ParallelSpec::NONE;
  }
  Die("unknown tensor of a site");
}

bool TransformerStage::KeepsOfBlock(size_t block, size_t entry) const {
  switch (options_.recompute) {
    case ParallelSpec::NONE:
      return true;
    case ParallelSpec::SELECTIVE:
      return entry < blocks_[block]->projected();
    case ParallelSpec::FULL:
      return false;
  }
  Die("unknown recomputation");
}

int64_t TransformerStage::ScratchBytes() const {
  int64_t most = head_ ? head_->ScratchBytes() : 0;
  for (const std::unique_ptr<Layer>& block : blocks_) most = std::max(most, block->ScratchBytes());
  // Stream gradients (a lone stage), that of a y inside a layer, a block's input gradient, and its
  // output or the embedding's gradient.
  const TensorSpec full = {"full", context_.activation, {context_.tokens(), context_.hidden()}};
  return most + layout_.ScratchBytes() + BytesFor({BoundarySpec(), full, full, full});
}

void TransformerStage::SetBatch(Pass pass, Tensor tokens, Tensor targets, Tensor sums) {
  pass_ = pass;
  tokens_ = tokens;
  targets_ = targets;
  sums_ = sums;
}

void TransformerStage::SetNextToken(int64_t row, Tensor logits) {
  next_token_row_ = row;
  logits_ = logits;
}

Tensor TransformerStage::Stream(Tensor streams, int stream) const {
  return stream < streams_ ? streams.At(stream) : Tensor();
}

SiteTensors TransformerStage::SiteIn(const Slot& slot, size_t site) const {
  const Tensor* saved = &saved_[site_begin_[site]];
  SiteTensors t = {.x = saved[kX], .scales = saved[kScales], .h = saved[kH]};
  if (StoresY(site)) t.y = saved[kY];
  if (sites_[site]->keeps_output()) t.o = context_.region.Own(saved[kOutput]);
  if (site == 0 && has_previous()) {
    t.x = Stream(slot.input, 0);
    t.y = Stream(slot.input, 1);
  } else if (site == 0) {
    t.x = context_.region.Own(t.x);
    if (streams_ == 2) t.y = t.x;  // both streams start as the embedding
  } else if (site == blocks() && has_next()) {
    t.x = Stream(slot.output, 0);
    t.y = Stream(slot.output, 1);
  }
  return t;
}

// [N, C] in scratch.
Tensor TransformerStage::AllocateFull() const {
  return context_.scratch->Allocate(context_.activation, {context_.tokens(), context_.hidden()});
}

Saved TransformerStage::BlockSaved(size_t block) const {
  return saved_.subspan(block_begin_[block], site_begin_[block + 1] - block_begin_[block]);
}

// Where tokens are not sharded, d_o takes the place of the x that the block's write produced: the
// site's backward is the last to read it, row by row as it writes d_o.
Tensor TransformerStage::OutputGradient(const Slot& slot, size_t block) const {
  if (context_.region.shards_tokens()) return saved_[site_begin_[block] + kDOutput];
  return SiteIn(slot, block + 1).x;
}

void TransformerStage::Forward(int micro_batch, Slot& slot) {
  ScratchScope scope(*context_.scratch);
  saved_ = layout_.View(slot.saved, *context_.scratch);
  UseValues(micro_batch, first_parameters_);
  if (embedding_) embedding_->Forward(tokens_.At(micro_batch), saved_[site_begin_[0] + kX]);
  sites_[0]->Forward({}, {}, SiteIn(slot, 0));
  const Tensor o = AllocateFull();
  for (size_t b = 0; b < blocks(); ++b) {
    UseValues(micro_batch, block_parameters_[b]);
    RunBlock(slot, b, o);
  }
  UseValues(micro_batch, head_parameters_);
  if (head_) RunHead(micro_batch, SiteIn(slot, blocks()).h);
}

// Micro-batches come in ascending order.
void TransformerStage::UseValues(int micro_batch, Range parameters) const {
  if (context_.observer == nullptr || micro_batch > 0) return;
  context_.observer->ValuesNeeded(parameters);
}

void TransformerStage::FinishGradients(int micro_batch, Range parameters) const {
  if (context_.observer == nullptr || micro_batch + 1 < tokens_.dim(0)) return;
  context_.observer->GradientsReady(parameters);
}

// A block, and the site after it. scratch_o: memory for an output that is not kept.
void TransformerStage::RunBlock(const Slot& slot, size_t block, Tensor scratch_o) {
  const SiteTensors site = SiteIn(slot, block);
  const Saved saved = BlockSaved(block);
  const Tensor o =
      sites_[block + 1]->keeps_output() ? saved_[site_begin_[block + 1] + kOutput] : scratch_o;
  context_.region.Enter(site.h);
  blocks_[block]->ProjectIn(site.h, saved);
  blocks_[block]->Core(saved);
  blocks_[block]->ProjectOut(o, saved);
  context_.region.Leave(o);
  sites_[block + 1]->Forward(site, context_.region.Own(o), SiteIn(slot, block + 1));
}

// Before the backward of `block`: what the forward did not keep of it, with FULL what it did not
// keep of its layer, whose backward begins with the MLP.
void TransformerStage::Recompute(const Slot& slot, size_t block) {
  const auto read_again = [&](size_t site) { sites_[site]->ReadAgain(SiteIn(slot, site)); };
  const auto enter = [&](size_t site) { context_.region.Enter(SiteIn(slot, site).h); };
  switch (options_.recompute) {
    case ParallelSpec::NONE:
      return;
    case ParallelSpec::SELECTIVE:
      read_again(block);
      enter(block);
      return blocks_[block]->Core(BlockSaved(block));
    case ParallelSpec::FULL: {
      if (block % 2 == 0) return;
      ScratchScope scope(*context_.scratch);
      const Tensor o = AllocateFull();
      read_again(block - 1);
      RunBlock(slot, block - 1, o);
      enter(block);
      blocks_[block]->ProjectIn(SiteIn(slot, block).h, BlockSaved(block));
      return blocks_[block]->Core(BlockSaved(block));
    }
  }
}

void TransformerStage::RunHead(int micro_batch, Tensor h) {
  context_.region.Enter(h);
  switch (pass_) {
    case Pass::kTraining:
      head_->LossAndGradient(h, targets_.At(micro_batch), sums_, options_.z_loss,
                             options_.gradient_scale);
      FinishGradients(micro_batch, head_parameters_);
      return;
    case Pass::kEvaluation:
      head_->Loss(h, targets_.At(micro_batch), sums_);
      return;
    case Pass::kNextToken:
      head_->Logits(h.Rows(next_token_row_, next_token_row_ + 1), logits_);
      return;
  }
}

void TransformerStage::BackwardInput(int micro_batch, Slot& slot) {
  const TensorRegion& region = context_.region;
  ScratchScope scope(*context_.scratch);
  saved_ = layout_.View(slot.saved, *context_.scratch);
  const TensorSpec boundary = BoundarySpec();
  const Tensor streams = has_next() ? slot.d_output
                         : has_previous()
                             ? slot.d_input
                             : context_.scratch->Allocate(boundary.dtype, boundary.shape);
  const Tensor dx = Stream(streams, 0);
  const Tensor dy = streams_ == 2 ? Stream(streams, 1) : InnerStreamGradient();
  const Tensor dh = AllocateFull();

  Tensor own_dh;  // gradient of what the site reads; nothing where a block of the next stage reads
  if (head_) {
    const Tensor head_dh = SiteIn(slot, blocks()).h;  // RunHead left it there
    region.EnterBackward(head_dh);
    own_dh = region.Own(head_dh);
    context_.ops.Zero(streams);
  }
  for (size_t b = blocks(); b-- > 0;) {
    const Tensor d_o = OutputGradient(slot, b);
    sites_[b + 1]->Backward(dx, dy, own_dh, SiteIn(slot, b + 1), region.Own(d_o),
                            RebuiltInput(slot, b + 1));
    region.LeaveBackward(d_o);
    Recompute(slot, b);
    blocks_[b]->BackwardInput(d_o, dh, BlockSaved(b));
    if (options_.recompute != ParallelSpec::NONE) BackwardBlockWeight(micro_batch, slot, b);
    region.EnterBackward(dh);
    own_dh = region.Own(dh);
  }
  sites_[0]->Backward(dx, dy, own_dh, SiteIn(slot, 0), Tensor(), Tensor());

  if (embedding_) {
    BackwardEmbedding(micro_batch, dx, Stream(streams, 1));
  } else if (streams.data() != slot.d_input.data()) {
    context_.device.Copy(slot.d_input, streams);
  }
  FinishGradients(micro_batch, first_parameters_);
}

// Of a y that lives inside layers: zero before each layer's backward, and after it. Absent where no
// layer has one.
Tensor TransformerStage::InnerStreamGradient() {
  if (std::none_of(sites_.begin(), sites_.end(), [](const auto& site) { return site->sets_y(); })) {
    return {};
  }
  const int64_t rows = context_.region.OwnRows(context_.tokens()).size();
  const Tensor dy = context_.scratch->Allocate(context_.activation, {rows, context_.hidden()});
  context_.ops.Zero(dy);
  return dy;
}

void TransformerStage::BackwardEmbedding(int micro_batch, Tensor dx, Tensor dy) {
  ScratchScope scope(*context_.scratch);
  const Tensor d_embedding = AllocateFull();
  const Tensor own = context_.region.Own(d_embedding);
  context_.device.Copy(own, dx);
  if (dy) context_.ops.Add(own, dy);
  embedding_->Backward(tokens_.At(micro_batch), d_embedding);
}

// What is computed again does not last: then BackwardInput has done each block's already.
void TransformerStage::BackwardWeight(int micro_batch, Slot& slot) {
  if (options_.recompute != ParallelSpec::NONE) return;
  ScratchScope scope(*context_.scratch);
  saved_ = layout_.View(slot.saved, *context_.scratch);
  for (size_t b = blocks(); b-- > 0;) BackwardBlockWeight(micro_batch, slot, b);
}

// The last to add to the gradients of the block and of the site after it.
void TransformerStage::BackwardBlockWeight(int micro_batch, const Slot& slot, size_t block) {
  const Tensor again = RebuiltInput(slot, block);
  blocks_[block]->BackwardWeight(again ? again : SiteIn(slot, block).h, OutputGradient(slot, block),
                                 BlockSaved(block));
  FinishGradients(micro_batch, block_parameters_[block]);
}

}  // namespace twinstream
