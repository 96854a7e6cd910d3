#include "parallel/process_grid.h"

#include "core/check.h"
#include "parallel/make_communicator.h"

namespace twinstream {

ProcessGrid::ProcessGrid(const GridShape& shape, Transport& transport) : shape_(shape) {
  Check(transport.size() == shape.ranks(), "the grid %s needs %d ranks, the job has %d",
        shape.ToString(), shape.ranks(), transport.size());
  for (int i = 0; i < kGridGroups; ++i) {
    const GridGroup group = static_cast<GridGroup>(i);
    communicators_[static_cast<size_t>(i)] =
        MakeCommunicator(transport, group, shape.Group(transport.rank(), group));
  }
}

}  // namespace twinstream
