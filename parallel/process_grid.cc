#include "parallel/process_grid.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "parallel/collectives.h"
#include "parallel/device_communicator.h"
#include "parallel/make_communicator.h"
#include "parallel/staged_communicator.h"

namespace twinstream {
namespace {

std::unique_ptr<Communicator> MakeWorld(const GridShape& shape, Transport& transport) {
  Check(transport.size() == shape.ranks(), "the grid %s needs %d ranks, the job has %d",
        shape.ToString(), shape.ranks(), transport.size());
  return MakeCommunicator(transport, GridGroup::kWorld,
                          shape.Group(transport.rank(), GridGroup::kWorld));
}

// The one place that chooses.
TensorPath PathFor(Communicator& world, Device& device) {
  if (device.host_memory()) return TensorPath::kHost;
  if (world.size() == 1) return TensorPath::kStaged;  // nothing travels
  const absl::string_view card = device.network() == nullptr ? "" : device.network()->card();
  std::vector<std::string> cards = GatherTexts(world, std::string(card));
  std::sort(cards.begin(), cards.end());
  const bool shared = std::adjacent_find(cards.begin(), cards.end()) != cards.end();
  return shared || cards.front().empty() ? TensorPath::kStaged : TensorPath::kNetwork;
}

GridUse EveryGroup() {
  GridUse use;
  for (int i = 1; i < kGridGroups; ++i) use[static_cast<GridGroup>(i)] = GroupUse();
  return use;
}

// The first group of the same ranks that can do the work of `group` too, or `group` itself.
GridGroup StandInFor(GridGroup group, const GridUse& use, const GridShape& shape, int rank) {
  const GroupUse& wanted = use.at(group);
  const auto can_stand_in = [&](const auto& other) {
    return other.second.work >= wanted.work && wanted.routes.empty() &&
           shape.Group(rank, other.first) == shape.Group(rank, group);
  };
  const auto end = use.find(group);
  const auto found = std::find_if(use.begin(), end, can_stand_in);
  return found == end ? group : found->first;
}

}  // namespace

ProcessGrid::ProcessGrid(const GridShape& shape, Transport& transport)
    : shape_(shape), path_(TensorPath::kHost) {
  Own(GridGroup::kWorld, MakeWorld(shape, transport));
  MakeOthers(EveryGroup(), transport, nullptr);
}

ProcessGrid::ProcessGrid(const GridShape& shape, const GridUse& use, Transport& transport,
                         Device& device)
    : shape_(shape) {
  Own(GridGroup::kWorld, MakeWorld(shape, transport));
  path_ = PathFor(world(), device);
  MakeOthers(use, transport, &device);
}

ProcessGrid::ProcessGrid(const GridShape& shape, const GridUse& use, Transport& transport,
                         Device& device, TensorPath path)
    : shape_(shape), path_(path) {
  Own(GridGroup::kWorld, MakeWorld(shape, transport));
  MakeOthers(use, transport, &device);
}

// In the order of GridGroup on every rank, whichever of them a rank uses: the first group, or
// route, that is not complete yet has at it all whom it joins. Groups of the same ranks, as
// replicas and experts often are, share what a network needs for them.
void ProcessGrid::MakeOthers(const GridUse& use, Transport& transport, Device* device) {
  const int rank = transport.rank();
  for (const auto& [group, of_group] : use) {
    Check(group != GridGroup::kWorld, "the world's communicator is no matter of a grid's use");
    const GridGroup stand_in = StandInFor(group, use, shape_, rank);
    std::unique_ptr<Communicator> host =
        MakeCommunicator(transport, group, shape_.Group(rank, group));
    if (path_ == TensorPath::kHost) {
      Own(group, std::move(host));
    } else if (path_ == TensorPath::kStaged || host->size() == 1) {
      Own(group, std::make_unique<StagedCommunicator>(std::move(host), *device));
    } else if (stand_in != group) {
      groups_[static_cast<size_t>(group)] = &In(stand_in);
    } else {
      Own(group, std::make_unique<DeviceCommunicator>(std::move(host), *device, of_group,
                                                      transport.timeout_seconds()));
    }
  }
}

Communicator& ProcessGrid::In(GridGroup group) const {
  Communicator* const communicator = groups_[static_cast<size_t>(group)];
  Check(communicator != nullptr,
        "rank %d asks for the %s group, which its grid was made without: see parallel/grid_use.cc",
        communicators_.front()->rank(), NameOf(group));
  return *communicator;
}

void ProcessGrid::Own(GridGroup group, std::unique_ptr<Communicator> communicator) {
  groups_[static_cast<size_t>(group)] = communicator.get();
  communicators_.push_back(std::move(communicator));
}

}  // namespace twinstream
