#include "parallel/grid_use.h"

#include <algorithm>

namespace twinstream {
namespace {

// Whether the last member of a group has the first one for a neighbour too.
enum class Ends { kOpen, kJoined };

void AddRoutesToNext(Channel channel, int size, Ends ends, std::vector<Route>* routes) {
  const int senders = ends == Ends::kJoined && size > 1 ? size : size - 1;
  for (int r = 0; r < senders; ++r) routes->push_back({channel, r, (r + 1) % size});
}

void AddRoutesToPrevious(Channel channel, int size, Ends ends, std::vector<Route>* routes) {
  const int receivers = ends == Ends::kJoined && size > 1 ? size : size - 1;
  for (int r = 0; r < receivers; ++r) routes->push_back({channel, (r + 1) % size, r});
}

// With several chunks per rank the stage after the last rank's is the first rank's.
GroupUse UseOfPipeline(const ParallelSpec& parallel, Gradients gradients) {
  const Ends ends = parallel.virtual_stages() > 1 ? Ends::kJoined : Ends::kOpen;
  const int size = parallel.pipeline();
  GroupUse use;
  AddRoutesToNext(Channel::kActivation, size, ends, &use.routes);
  if (gradients == Gradients::kNone) {
    use.work = GroupWork::kCollectives;  // logits, from the last stage
  } else {
    AddRoutesToPrevious(Channel::kGradient, size, ends, &use.routes);
  }
  return use;
}

GroupUse UseOfRing(int size, Gradients gradients) {
  GroupUse use;
  AddRoutesToNext(Channel::kKeyValue, size, Ends::kJoined, &use.routes);
  if (gradients == Gradients::kNone) {
    use.work = GroupWork::kCollectives;  // logits, from the token's rank
  } else {
    AddRoutesToNext(Channel::kKeyValueGradient, size, Ends::kJoined, &use.routes);
  }
  return use;
}

// First and last stage send each other their gradient.
std::vector<Route> TiedRoutes(int size) {
  return {{Channel::kTied, 0, size - 1}, {Channel::kTied, size - 1, 0}};
}

}  // namespace

GridUse UseOfPasses(const JobSpec& job, Gradients gradients) {
  const ParallelSpec& parallel = job.parallel();
  GridUse use = {{GridGroup::kTensor, {.work = GroupWork::kCollectives}},
                 {GridGroup::kContext, UseOfRing(parallel.context(), gradients)},
                 {GridGroup::kPipeline, UseOfPipeline(parallel, gradients)}};
  if (job.model().has_moe()) {
    use[GridGroup::kReplicas].work = GroupWork::kCollectives;
    use[GridGroup::kExperts].work = GroupWork::kCollectives;
  }
  return use;
}

GridUse UseOfUpdates(const ParameterStore& parameters, const GridShape& shape,
                     Gradients gradients) {
  GridUse use;
  const auto add = [&](GridGroup group, GroupWork work, const std::vector<Route>& routes = {}) {
    GroupUse& of_group = use[group];
    if (gradients == Gradients::kNone) return;
    of_group.work = std::max(of_group.work, work);
    if (!routes.empty()) of_group.routes = routes;
  };
  for (const std::unique_ptr<Parameter>& parameter : parameters.parameters()) {
    const ParameterSpec& spec = parameter->spec;
    const bool rounded = parameters.ValueType(spec) != DType::kF32;  // gradients travel as bf16
    add(spec.replicas, rounded ? GroupWork::kRoundedSums : GroupWork::kCollectives);
    if (spec.sum_over_tensor) add(GridGroup::kTensor, GroupWork::kCollectives);
    if (spec.sum_over_stages) {
      add(GridGroup::kPipeline, GroupWork::kMessages, TiedRoutes(shape.pipeline));
    }
  }
  return use;
}

}  // namespace twinstream
