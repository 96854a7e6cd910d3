#include "parallel/process_grid.h"

#include <algorithm>
#include <array>
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

}  // namespace

ProcessGrid::ProcessGrid(const GridShape& shape, Transport& transport)
    : shape_(shape), path_(TensorPath::kHost) {
  Own(GridGroup::kWorld, MakeWorld(shape, transport));
  MakeOthers(transport, nullptr);
}

ProcessGrid::ProcessGrid(const GridShape& shape, Transport& transport, Device& device)
    : shape_(shape) {
  Own(GridGroup::kWorld, MakeWorld(shape, transport));
  path_ = PathFor(world(), device);
  MakeOthers(transport, &device);
}

ProcessGrid::ProcessGrid(const GridShape& shape, Transport& transport, Device& device,
                         TensorPath path)
    : shape_(shape), path_(path) {
  Own(GridGroup::kWorld, MakeWorld(shape, transport));
  MakeOthers(transport, &device);
}

// Groups of the same ranks, as data and replicas often are, share what a network needs for them.
void ProcessGrid::MakeOthers(Transport& transport, Device* device) {
  std::array<std::vector<int>, kGridGroups> ranks;
  for (size_t i = 1; i < ranks.size(); ++i) {
    const GridGroup group = static_cast<GridGroup>(i);
    ranks[i] = shape_.Group(transport.rank(), group);
    std::unique_ptr<Communicator> host = MakeCommunicator(transport, group, ranks[i]);
    const auto like = std::find(ranks.begin() + 1, ranks.begin() + i, ranks[i]) - ranks.begin();
    if (path_ == TensorPath::kHost) {
      Own(group, std::move(host));
    } else if (path_ == TensorPath::kStaged || ranks[i].size() == 1) {
      Own(group, std::make_unique<StagedCommunicator>(std::move(host), *device));
    } else if (like < static_cast<std::ptrdiff_t>(i)) {
      groups_[i] = groups_[static_cast<size_t>(like)];
    } else {
      const std::vector<Route> routes = RoutesOf(group, host->size());
      Own(group, std::make_unique<DeviceCommunicator>(std::move(host), *device, routes,
                                                      transport.timeout_seconds()));
    }
  }
}

void ProcessGrid::Own(GridGroup group, std::unique_ptr<Communicator> communicator) {
  groups_[static_cast<size_t>(group)] = communicator.get();
  communicators_.push_back(std::move(communicator));
}

}  // namespace twinstream
