#include "models/moe.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "models/initialization.h"

namespace twinstream {
namespace {

enum SavedIndex : size_t {
  // At home.
  kProbabilities,  // then the gradient of the logits
  kLse,
  kExperts,
  kWeights,
  kRows,
  kChoices,
  kCounts,  // rows for each expert, then those of each sender for each of this rank's experts
  kStatistics,
  // On the experts' rank.
  kExpertRows,  // h of the routed rows
  kUp,          // then its gradient
  // What follows does not come from ProjectIn.
  kActivation,
  kGradientRows,  // p d_o of the routed rows
};

}  // namespace

int64_t RouterSumElements(const ModelSpec& model) {
  return model.has_moe() ? model.layers() * RouterSumsOfLayer(model) : 0;
}

Moe::Moe(ModelContext& context, int64_t layer, float micro_batch_share)
    : context_(context), layer_(layer), top_k_(context.model.moe().top_k()) {
  const MoeSpec& moe = context.model.moe();
  experts_ = moe.experts() / context.experts.size();
  width_ = SplitEvenly(context.model.ffn(), context.region.size(), context.region.rank()).size();
  if (context.region.rank() == 0) {
    const float share = micro_batch_share / static_cast<float>(context.model.layers());
    scales_ = {.load_balance = static_cast<float>(moe.load_balance()) * share,
               .router_z = static_cast<float>(moe.router_z()) * share};
  }
  DeclareParameters(layer);

  for (int r = 0; r < context.experts.size(); ++r) {
    count_begins_.push_back(r * experts_);
    count_counts_.push_back(experts_);
  }
}

void Moe::DeclareParameters(int64_t layer) {
  const ModelSpec& model = context_.model;
  const TensorRegion& region = context_.region;
  const int64_t E = model.moe().experts(), F = model.ffn(), C = model.hidden();
  const Range columns = SplitEvenly(F, region.size(), region.rank());
  const int64_t first = context_.experts.rank() * experts_;
  const std::string prefix = absl::StrCat("layers.", layer, ".moe.");
  const Shape router = {E, C}, up = {E, 2 * F, C}, down = {E, C, F};
  router_ = &context_.parameters.Declare({.name = prefix + "router.weight",
                                          .global = router,
                                          .boxes = {{Box::Whole(router), region.rank() == 0}},
                                          .init_std = InitialStd(model, WeightRole::kRouter, layer),
                                          .sum_over_tensor = region.size() > 1,
                                          .float32 = true,
                                          .first_overwrites = true});
  ParameterSpec ups = {.name = prefix + "up.weight",
                       .global = up,
                       .init_std = InitialStd(model, WeightRole::kMlpUp, layer),
                       .replicas = GridGroup::kExpertReplicas,
                       .first_overwrites = true};
  ParameterSpec downs = {.name = prefix + "down.weight",
                         .global = down,
                         .init_std = InitialStd(model, WeightRole::kMlpDown, layer),
                         .replicas = GridGroup::kExpertReplicas,
                         .first_overwrites = true};
  // An expert's values and gates lie one below the other, as an Mlp's.
  for (int64_t e = first; e < first + experts_; ++e) {
    for (int64_t begin : {columns.begin, F + columns.begin}) {
      ups.boxes.push_back({{{e, begin, 0}, {1, width_, C}}});
    }
    downs.boxes.push_back({{{e, 0, columns.begin}, {1, C, width_}}});
  }
  up_ = &context_.parameters.Declare(ups);
  down_ = &context_.parameters.Declare(downs);
}

int64_t Moe::routed_rows() const { return context_.tokens() * top_k_; }

int64_t Moe::most_rows() const {
  return context_.experts.size() * context_.tokens() * std::min(top_k_, experts_);
}

std::vector<TensorSpec> Moe::SavedSpecs() const {
  const int64_t N = context_.tokens(), E = context_.model.moe().experts(), C = context_.hidden(),
                R = most_rows();
  const DType dtype = context_.activation;
  return {{"probabilities", DType::kF32, {N, E}}, {"lse", DType::kF32, {N}},
          {"experts", DType::kI32, {N, top_k_}},  {"weights", DType::kF32, {N, top_k_}},
          {"rows", DType::kI32, {N, top_k_}},     {"choices", DType::kI32, {routed_rows()}},
          {"counts", DType::kI32, {2, E}},        {"statistics", DType::kF64, {2 * E + 1}},
          {"expert_rows", dtype, {R, C}},         {"up", dtype, {R, 2 * width_}},
          {"activation", dtype, {R, width_}},     {"gradient_rows", dtype, {R, C}}};
}

size_t Moe::projected() const { return kActivation; }

int64_t Moe::ScratchBytes() const {
  const int64_t C = context_.hidden(), at_home = alone() ? 0 : routed_rows();
  const DType dtype = context_.activation;
  return BytesFor({{"expert_rows", dtype, {most_rows(), C}},
                   {"home_rows", dtype, {at_home, C}},
                   {"d_activation", dtype, {most_rows(), width_}},
                   {"products", DType::kF32, {most_rows()}},
                   {"home_products", DType::kF32, {at_home}}});
}

RoutingTensors Moe::Routing(Saved saved) const {
  return {.probabilities = saved[kProbabilities],
          .lse = saved[kLse],
          .experts = saved[kExperts],
          .weights = saved[kWeights],
          .rows = saved[kRows],
          .choices = saved[kChoices],
          .counts = saved[kCounts].At(0),
          .statistics = saved[kStatistics]};
}

Moe::Exchange::Exchange(size_t parts, size_t experts_of_rank)
    : home_begins(parts),
      home_counts(parts),
      expert_begins(parts),
      expert_counts(parts),
      expert_rows(experts_of_rank) {}

const Moe::Exchange& Moe::PlanExchange(Saved saved) {
  const Tensor counts = saved[kCounts];
  // Every rank tells the others how many rows come for each of their experts.
  const RowParts counts_parts = {count_begins_, count_counts_};
  context_.experts.Exchange(counts.At(1), counts_parts, counts.At(0), counts_parts);
  Check(static_cast<int64_t>(context_.expert_rows.size()) == counts.elements(),
        "layer %d has %d counts of rows and memory of the host for %d", layer_, counts.elements(),
        context_.expert_rows.size());
  context_.device.CopyOut(context_.expert_rows.data(), counts);

  const size_t parts = static_cast<size_t>(counts.dim(1)), experts = static_cast<size_t>(experts_);
  const int32_t* const sent = context_.expert_rows.data();
  const int32_t* const received = sent + parts;
  Exchange& x = exchanges_.try_emplace(counts.data(), parts, experts).first->second;
  int64_t home = 0;
  for (size_t part = 0; part < parts; ++part) {
    x.home_begins[part] = home;
    x.home_counts[part] = sent[part];
    home += sent[part];
  }
  x.rows = 0;
  for (size_t e = 0; e < experts; ++e) {
    const int64_t begin = x.rows;
    for (size_t part = e; part < parts; part += experts) {  // a sender each
      x.expert_begins[part] = x.rows;
      x.expert_counts[part] = received[part];
      x.rows += received[part];
    }
    x.expert_rows[e] = x.rows - begin;
  }
  return x;
}

const Moe::Exchange& Moe::ExchangeOf(Saved saved) const {
  const auto found = exchanges_.find(saved[kCounts].data());
  Check(found != exchanges_.end(), "layer %d is asked for a micro-batch that it has not routed",
        layer_);
  return found->second;
}

// Where rows of `at_experts` are at home: a lone rank's stay where they are.
Tensor Moe::AtHome(Tensor at_experts) const {
  if (alone()) return at_experts;
  Shape shape = at_experts.shape();
  shape[0] = routed_rows();
  return context_.scratch->Allocate(at_experts.dtype(), shape);
}

void Moe::SendToExperts(const Exchange& x, Tensor at_experts, Tensor tokens, Tensor choices,
                        Tensor weights) const {
  ScratchScope scope(*context_.scratch);
  const Tensor home = AtHome(at_experts);
  context_.ops.GatherRows(home, tokens, choices, weights);
  context_.experts.Exchange(at_experts, x.at_experts(), home, x.home());
}

Tensor Moe::BringHome(const Exchange& x, Tensor at_experts) const {
  const Tensor home = AtHome(at_experts);
  context_.experts.Exchange(home, x.home(), at_experts, x.at_experts());
  return home;
}

void Moe::ProjectIn(Tensor h, Saved saved) {
  const Ops& ops = context_.ops;
  ops.Matmul(saved[kProbabilities], h, router_->value, {.transpose_b = true});
  ops.RouteTokens(Routing(saved));
  const Exchange& x = PlanExchange(saved);
  // The backward is the first to read these sums: the host has not waited for all replicas.
  context_.experts.SumOverTokens(saved[kStatistics]);

  SendToExperts(x, saved[kExpertRows], h, saved[kChoices], {});
  ops.GroupedMatmul(saved[kUp], saved[kExpertRows], up_->value, x.expert_rows,
                    {.transpose_b = true});
}

void Moe::Core(Saved saved) {
  const Exchange& x = ExchangeOf(saved);
  context_.ops.SwiGluForward(x.Used(saved[kActivation]), x.Used(saved[kUp]));
}

void Moe::ProjectOut(Tensor o, Saved saved) {
  const Ops& ops = context_.ops;
  const Exchange& x = ExchangeOf(saved);
  ScratchScope scope(*context_.scratch);
  const Tensor y = context_.scratch->Allocate(context_.activation, saved[kExpertRows].shape());
  ops.GroupedMatmul(y, saved[kActivation], down_->value, x.expert_rows, {.transpose_b = true});
  ops.CombineRows(o, BringHome(x, y), saved[kRows], saved[kWeights]);
}

void Moe::BackwardInput(Tensor d_o, Tensor dh, Saved saved) {
  const Ops& ops = context_.ops;
  const Exchange& x = ExchangeOf(saved);

  ScratchScope scope(*context_.scratch);
  SendToExperts(x, saved[kGradientRows], d_o, saved[kChoices], saved[kWeights]);
  const Tensor d_activation =
      context_.scratch->Allocate(context_.activation, saved[kActivation].shape());
  ops.GroupedMatmul(d_activation, saved[kGradientRows], down_->value, x.expert_rows, {});
  const Tensor products = context_.scratch->Allocate(DType::kF32, {most_rows()});
  ops.RowProducts(x.Used(products), x.Used(d_activation), x.Used(saved[kActivation]));
  ops.SwiGluBackward(x.Used(saved[kUp]), x.Used(d_activation), x.Used(saved[kUp]));
  const Tensor d_rows = context_.scratch->Allocate(context_.activation, saved[kExpertRows].shape());
  ops.GroupedMatmul(d_rows, saved[kUp], up_->value, x.expert_rows, {});
  ops.CombineRows(dh, BringHome(x, d_rows), saved[kRows], {});
  ops.RouterBackward(Routing(saved), BringHome(x, products), scales_);
  ops.Matmul(dh, saved[kProbabilities], router_->value, {.accumulate = true});

  const int64_t elements = RouterSumsOfLayer(context_.model);
  const Tensor sums = context_.router_sums.Rows(layer_ * elements, (layer_ + 1) * elements);
  ops.AddRouterLosses(sums.Rows(0, 2), sums.Rows(2, elements), saved[kStatistics], top_k_);
}

void Moe::BackwardWeight(Tensor h, Tensor /*d_o*/, Saved saved) {
  const Ops& ops = context_.ops;
  const Exchange& x = ExchangeOf(saved);
  ops.Matmul(router_->gradient, saved[kProbabilities], h,
             {.transpose_a = true, .accumulate = router_->AddsToGradient()});
  ops.GroupedMatmul(up_->gradient, saved[kUp], saved[kExpertRows], x.expert_rows,
                    {.transpose_a = true, .accumulate = up_->AddsToGradient()});
  ops.GroupedMatmul(down_->gradient, saved[kGradientRows], saved[kActivation], x.expert_rows,
                    {.transpose_a = true, .accumulate = down_->AddsToGradient()});
}

}  // namespace twinstream
