// Moe: a dropless mixture of SwiGLU experts (OLMoE, arXiv 2409.02060) in an Mlp's place.
//   p = softmax(h Wr'),  o = sum over the top k experts e of p_e Expert_e(h),  p not renormalised.
//
// Expert parallel: rank i of the ExpertRegion holds experts [i, i + 1) E / size; the routed rows,
// in the order of experts and then of tokens, go to them and come back (all-to-all). Memory is
// planned for the worst case, in which every token of the region chooses as many of this rank's
// experts as it can: size N min(k, E / size) rows. On the CPU, pages never touched take no memory.
//
// Tensor parallel: each expert is split like an Mlp. All tensor ranks see the same tokens and the
// same bits, so they route alike. In the backward everything that follows from a rank's addend of
// o is its addend, the router's gradients too: softmax's backward is linear in dL/dp, whose part is
// <d_o, the rank's y>. The auxiliary losses are tensor rank 0's. So dh is summed with the rest of
// the block's (TensorRegion), and the router weight's gradient over the tensor ranks.
//
// The backward needs no routing weight on the expert's rank: rows of p d_o travel there, and
// <p d_o, y> = <d_activation, activation> is p dL/dp, all that softmax's backward takes.
//
// The host must know how many rows each expert gets, as it sizes products and messages. For that a
// ProjectIn waits for the device, once; all that follows goes by what it has planned.
#pragma once

#include <map>
#include <vector>

#include "models/context.h"
#include "models/layer.h"

namespace twinstream {

// Of ModelContext::router_sums; 0 for a dense model.
int64_t RouterSumElements(const ModelSpec& model);
// Of them, those of one layer of an MoE model: 2 + E.
inline int64_t RouterSumsOfLayer(const ModelSpec& model) { return 2 + model.moe().experts(); }

class Moe final : public Layer {
 public:
  // micro_batch_share: 1 / micro-batches of an update, over which auxiliary losses are averaged.
  Moe(ModelContext& context, int64_t layer, float micro_batch_share);

  std::vector<TensorSpec> SavedSpecs() const override;
  size_t projected() const override;
  int64_t ScratchBytes() const override;
  void ProjectIn(Tensor h, Saved saved) override;  // from the router to the experts' ranks
  void Core(Saved saved) override;
  void ProjectOut(Tensor o, Saved saved) override;  // and home again
  // Also adds the micro-batch's auxiliary losses to the context's, so that they are counted once
  // per update, however often a forward is repeated.
  void BackwardInput(Tensor d_o, Tensor dh, Saved saved) override;
  void BackwardWeight(Tensor h, Tensor d_o, Saved saved) override;

 private:
  // Where a micro-batch's routed rows are: at home in the order of all experts, on the experts'
  // ranks in the order of the rank's experts and then of the senders. Parts as RowParts has them:
  // one per sender or receiver and expert.
  struct Exchange {
    Exchange(size_t parts, size_t experts_of_rank);
    std::vector<int64_t> home_begins, home_counts, expert_begins, expert_counts;
    std::vector<int64_t> expert_rows;  // of each of this rank's experts
    int64_t rows = 0;                  // theirs together
    RowParts home() const { return {home_begins, home_counts}; }
    RowParts at_experts() const { return {expert_begins, expert_counts}; }
    // All that are used out of the most that there can be.
    Tensor Used(Tensor all) const { return all.Rows(0, rows); }
  };

  void DeclareParameters(int64_t layer);
  RoutingTensors Routing(Saved saved) const;
  int64_t routed_rows() const;  // of this rank's tokens: N k
  int64_t most_rows() const;    // that this rank's experts can get
  bool alone() const { return context_.experts.size() == 1; }
  // From the counts that RouteTokens has left.
  const Exchange& PlanExchange(Saved saved);
  const Exchange& ExchangeOf(Saved saved) const;  // that the last ProjectIn of `saved` planned
  Tensor AtHome(Tensor at_experts) const;
  // at_experts: the routed rows of `tokens` [N, C], of all ranks for this rank's experts, times
  // their weights where these are given.
  void SendToExperts(const Exchange& x, Tensor at_experts, Tensor tokens, Tensor choices,
                     Tensor weights) const;
  // This rank's routed rows out of everybody's `at_experts`.
  Tensor BringHome(const Exchange& x, Tensor at_experts) const;

  ModelContext& context_;
  int64_t layer_;
  int64_t top_k_;
  int64_t experts_;  // of this rank
  int64_t width_;    // F of this rank
  RouterLossScales scales_;
  Parameter* router_;
  Parameter* up_;
  Parameter* down_;
  std::vector<int64_t> count_begins_, count_counts_;  // parts of the counts themselves
  // By the memory that the counts are in: a slot's, which is one micro-batch's until its backward
  // is through, or scratch with FULL recomputation, where ProjectIn comes again before the
  // backward.
  std::map<const std::byte*, Exchange> exchanges_;
};

}  // namespace twinstream
