// GridUse: what a ProcessGrid is for. Where a network joins the devices, every group of ranks that
// runs collectives and every route of messages is a network group with memory and connections of
// its own. So a grid has what its use names and nothing else.
#pragma once

#include <map>
#include <vector>

#include "core/device_collectives.h"
#include "parallel/communicator.h"
#include "parallel/grid_shape.h"
#include "parallel/parameter_store.h"
#include "proto/job.pb.h"

namespace twinstream {

// Messages of one channel from one member of a group to another.
struct Route {
  Channel channel = Channel::kActivation;
  int from = 0, to = 0;
  friend bool operator==(const Route&, const Route&) = default;
};

// What the members of a group do with each other. As it begins: nothing, they only know how many
// they are and who is who.
struct GroupUse {
  GroupWork work = GroupWork::kMessages;
  std::vector<Route> routes;  // of all members' messages
  friend bool operator==(const GroupUse&, const GroupUse&) = default;
};

// The world's group is always there and not named here.
using GridUse = std::map<GridGroup, GroupUse>;

// What the stages of a model exchange in their passes, and, kNone, for the next token. job:
// resolved. The same on every rank.
GridUse UseOfPasses(const JobSpec& job, Gradients gradients);

// What Optimizer does for these parameters: nothing where there are no gradients. Members of a
// group that runs collectives have the same parameters and so the same use of it. Of a pipeline
// only first and last stage, between whom its routes are, have the tied ones.
GridUse UseOfUpdates(const ParameterStore& parameters, const GridShape& shape, Gradients gradients);

}  // namespace twinstream
