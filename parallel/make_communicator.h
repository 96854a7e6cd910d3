// MakeCommunicator: the communicator of a group of ranks, as this build wants it (CMakeLists.txt
// takes parallel/debug/ or parallel/release/).
#pragma once

#include <memory>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/grid_shape.h"
#include "parallel/transport.h"

namespace twinstream {

// For memory of the host. Arguments as HostCommunicator's. In debug builds every collective is
// checked first (CheckedCommunicator).
std::unique_ptr<Communicator> MakeCommunicator(Transport& transport, GridGroup group,
                                               std::vector<int> ranks);

}  // namespace twinstream
