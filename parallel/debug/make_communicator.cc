#include "parallel/make_communicator.h"

#include <utility>

#include "parallel/checked_communicator.h"
#include "parallel/host_communicator.h"

namespace twinstream {

std::unique_ptr<Communicator> MakeCommunicator(Transport& transport, GridGroup group,
                                               std::vector<int> ranks) {
  return std::make_unique<CheckedCommunicator>(
      std::make_unique<HostCommunicator>(transport, group, std::move(ranks)));
}

}  // namespace twinstream
