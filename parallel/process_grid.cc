#include "parallel/process_grid.h"

#include <numeric>
#include <vector>

#include "core/check.h"
#include "parallel/host_communicator.h"

namespace twinstream {

ProcessGrid::ProcessGrid(const GridShape& shape, Transport& transport) : shape_(shape) {
  Check(transport.size() == shape.ranks(), "the grid %s needs %d ranks, the job has %d",
        shape.ToString(), shape.ranks(), transport.size());
  const int rank = transport.rank();
  std::vector<int> all(static_cast<size_t>(shape.ranks()));
  std::iota(all.begin(), all.end(), 0);
  world_ = std::make_unique<HostCommunicator>(transport, CommunicatorScope::kWorld, all);
  tensor_ = std::make_unique<HostCommunicator>(transport, CommunicatorScope::kTensor,
                                               shape.Group(rank, Axis::kTensor));
  data_ = std::make_unique<HostCommunicator>(transport, CommunicatorScope::kData,
                                             shape.Group(rank, Axis::kData));
  pipeline_ = std::make_unique<HostCommunicator>(transport, CommunicatorScope::kPipeline,
                                                 shape.Group(rank, Axis::kPipeline));
}

}  // namespace twinstream
