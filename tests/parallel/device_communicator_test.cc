#include "parallel/device_communicator.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/host_communicator.h"
#include "parallel/process_grid.h"
#include "tests/testing/collective_checks.h"
#include "tests/testing/rank_devices.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/uploaded_communicator.h"

namespace twinstream::testing {
namespace {

// Of everybody, also to itself, in both directions round a ring, on the channels of CheckTensors.
std::vector<Route> AllRoutes(int size) {
  std::vector<Route> routes;
  for (int r = 0; r < size; ++r) {
    routes.push_back({Channel::kActivation, r, (r + 1) % size});
    routes.push_back({Channel::kGradient, r, (r + size - 1) % size});
    routes.push_back({Channel::kKeyValue, r, (r + 1) % size});
    routes.push_back({Channel::kKeyValueGradient, r, (r + 1) % size});
  }
  return routes;
}

class DeviceCommunicatorTest : public ::testing::TestWithParam<int> {};

TEST_P(DeviceCommunicatorTest, GivesTheNetworkWhatTheOperationsSay) {
  ThreadNetworkHub hub;
  RunRanks(GetParam(), [&](Transport& transport) {
    const std::unique_ptr<Device> device =
        MakeRemoteDevice(MakeUntouchableDevice(), &hub, std::to_string(transport.rank()));
    DeviceCommunicator communicator(std::make_unique<HostCommunicator>(transport, GridGroup::kWorld,
                                                                       AllRanks(transport.size())),
                                    *device, AllRoutes(transport.size()), 60);
    UploadedCommunicator world(communicator, *device);
    CheckTensors(world);
  });
  EXPECT_EQ(hub.groups(), 1 + 4 * GetParam());
}

INSTANTIATE_TEST_SUITE_P(Sizes, DeviceCommunicatorTest, ::testing::Values(2, 3, 4));

TEST(RoutesOf, ArePipelinesNeighboursAndARing) {
  EXPECT_TRUE(RoutesOf(GridGroup::kPipeline, 1).empty());
  EXPECT_TRUE(RoutesOf(GridGroup::kTensor, 4).empty());
  EXPECT_THAT(RoutesOf(GridGroup::kPipeline, 2),
              ::testing::UnorderedElementsAre(
                  Route{Channel::kActivation, 0, 1}, Route{Channel::kActivation, 1, 0},
                  Route{Channel::kGradient, 0, 1}, Route{Channel::kGradient, 1, 0},
                  Route{Channel::kTied, 0, 1}, Route{Channel::kTied, 1, 0}));
  EXPECT_THAT(RoutesOf(GridGroup::kContext, 2),
              ::testing::UnorderedElementsAre(Route{Channel::kKeyValue, 0, 1},
                                              Route{Channel::kKeyValue, 1, 0},
                                              Route{Channel::kKeyValueGradient, 0, 1},
                                              Route{Channel::kKeyValueGradient, 1, 0}));
}

TEST(ProcessGrid, TakesTheNetworkWhereEveryRankHasACardOfItsOwn) {
  const auto path_with = [](ThreadNetworkHub* hub, bool shared) {
    TensorPath path = TensorPath::kHost;
    RunRanks(2, [&](Transport& transport) {
      const std::unique_ptr<Device> device =
          MakeRemoteDevice(MakeDevice("cpu", {}).value(), hub,
                           shared ? "the card" : std::to_string(transport.rank()));
      const ProcessGrid grid({.data = 2}, transport, *device);
      if (transport.rank() == 0) path = grid.path();
    });
    return path;
  };
  ThreadNetworkHub hub;
  EXPECT_EQ(path_with(&hub, false), TensorPath::kNetwork);
  EXPECT_EQ(path_with(&hub, true), TensorPath::kStaged);
  EXPECT_EQ(path_with(nullptr, false), TensorPath::kStaged);
  RunRanks(2, [](Transport& transport) {
    const std::unique_ptr<Device> device = MakeDevice("cpu", {}).value();
    EXPECT_EQ(ProcessGrid({.data = 2}, transport, *device).path(), TensorPath::kHost);
  });
}

}  // namespace
}  // namespace twinstream::testing
