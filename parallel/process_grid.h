// ProcessGrid: GridShape plus this rank's communicator per group. Owns the communicators.
#pragma once

#include <array>
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
  Communicator& In(GridGroup group) const { return *communicators_[static_cast<size_t>(group)]; }
  Communicator& world() const { return In(GridGroup::kWorld); }
  Communicator& tensor() const { return In(GridGroup::kTensor); }
  Communicator& context() const { return In(GridGroup::kContext); }
  Communicator& data() const { return In(GridGroup::kData); }
  Communicator& pipeline() const { return In(GridGroup::kPipeline); }

 private:
  GridShape shape_;
  std::array<std::unique_ptr<Communicator>, kGridGroups> communicators_;
};

}  // namespace twinstream
