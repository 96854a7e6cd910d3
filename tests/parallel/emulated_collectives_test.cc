// CudaCollectives, the network of cards, on emulated ones: each rank has its own.
#include <memory>

#include "core/cuda/collectives.h"
#include "core/cuda/device.h"
#include "core/cuda/emulated/runtime.h"
#include "gtest/gtest.h"
#include "parallel/device_communicator.h"
#include "parallel/host_communicator.h"
#include "tests/testing/collective_checks.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/uploaded_communicator.h"

namespace twinstream::testing {
namespace {

constexpr int kMostRanks = 4;

class CudaCollectivesTest : public ::testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() { gpu::SetEmulatedHost({.cards = kMostRanks}); }
};

TEST_P(CudaCollectivesTest, DoWhatTheOperationsSay) {
  RunRanks(GetParam(), [](Transport& transport) {
    CudaDevice device(transport.rank());
    DeviceCommunicator communicator(std::make_unique<HostCommunicator>(transport, GridGroup::kWorld,
                                                                       AllRanks(transport.size())),
                                    device, AllWorkOf(transport.size()), 60);
    UploadedCommunicator world(communicator, device);
    CheckTensors(world);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaCollectivesTest, ::testing::Range(2, kMostRanks + 1));

}  // namespace
}  // namespace twinstream::testing
