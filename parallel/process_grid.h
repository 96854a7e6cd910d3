// ProcessGrid: GridShape plus this rank's communicator per axis. Owns the communicators.
#pragma once

#include <memory>

#include "parallel/communicator.h"
#include "parallel/grid_shape.h"
#include "parallel/transport.h"

namespace twinstream {

class ProcessGrid {
 public:
  // `transport` outlives the grid and has shape.ranks() ranks.
  ProcessGrid(const GridShape& shape, Transport& transport);

  const GridShape& shape() const { return shape_; }
  GridCoordinates at() const { return shape_.At(world().rank()); }
  Communicator& world() const { return *world_; }
  Communicator& tensor() const { return *tensor_; }
  Communicator& data() const { return *data_; }
  Communicator& pipeline() const { return *pipeline_; }

 private:
  GridShape shape_;
  std::unique_ptr<Communicator> world_, tensor_, data_, pipeline_;
};

}  // namespace twinstream
