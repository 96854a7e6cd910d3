// ProcessGrid: GridShape plus this rank's communicator for each group that is used. Owns the
// communicators. The world's is for memory of the host: ranks agree by it. All others are for the
// tensors of a model.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "core/device.h"
#include "parallel/communicator.h"
#include "parallel/grid_shape.h"
#include "parallel/grid_use.h"
#include "parallel/transport.h"

namespace twinstream {

// How a model's tensors get from rank to rank.
enum class TensorPath {
  kHost,     // they are in memory of the host: HostCommunicator
  kStaged,   // from device to device by way of the host: StagedCommunicator
  kNetwork,  // from device to device: DeviceCommunicator
};

class ProcessGrid {
 public:
  // For tensors in memory of the host, where a group costs nothing: all of them. `transport`
  // outlives the grid and has shape.ranks() ranks.
  ProcessGrid(const GridShape& shape, Transport& transport);
  // For tensors in memory of the device, which outlives the grid. Collective: the network is taken
  // when every rank has one and a card of its own. Members of a group name the same work; of a
  // route its two ends.
  ProcessGrid(const GridShape& shape, const GridUse& use, Transport& transport, Device& device);
  // The same with the path of another grid.
  ProcessGrid(const GridShape& shape, const GridUse& use, Transport& transport, Device& device,
              TensorPath path);

  const GridShape& shape() const { return shape_; }
  TensorPath path() const { return path_; }
  GridCoordinates at() const { return shape_.At(world().rank()); }
  Communicator& In(GridGroup group) const;  // dies unless it is the world's or in the use
  Communicator& world() const { return In(GridGroup::kWorld); }
  Communicator& tensor() const { return In(GridGroup::kTensor); }
  Communicator& context() const { return In(GridGroup::kContext); }
  Communicator& data() const { return In(GridGroup::kData); }
  Communicator& pipeline() const { return In(GridGroup::kPipeline); }

 private:
  void MakeOthers(const GridUse& use, Transport& transport, Device* device);  // but the world's
  void Own(GridGroup group, std::unique_ptr<Communicator> communicator);

  GridShape shape_;
  TensorPath path_;
  std::vector<std::unique_ptr<Communicator>> communicators_;  // the world's first
  std::array<Communicator*, kGridGroups> groups_ = {};
};

}  // namespace twinstream
