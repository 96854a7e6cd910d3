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

class DeviceCommunicatorTest : public ::testing::TestWithParam<int> {};

TEST_P(DeviceCommunicatorTest, GivesTheNetworkWhatTheOperationsSay) {
  ThreadNetworkHub hub;
  RunRanks(GetParam(), [&](Transport& transport) {
    const std::unique_ptr<Device> device =
        MakeRemoteDevice(MakeUntouchableDevice(), &hub, std::to_string(transport.rank()));
    DeviceCommunicator communicator(std::make_unique<HostCommunicator>(transport, GridGroup::kWorld,
                                                                       AllRanks(transport.size())),
                                    *device, AllWorkOf(transport.size()), 60);
    UploadedCommunicator world(communicator, *device);
    CheckTensors(world);
  });
  EXPECT_EQ(hub.groups(GroupWork::kRoundedSums), 1);
  EXPECT_EQ(hub.groups(GroupWork::kMessages), 4 * GetParam());
}

INSTANTIATE_TEST_SUITE_P(Sizes, DeviceCommunicatorTest, ::testing::Values(2, 3, 4));

TEST(ProcessGrid, TakesTheNetworkWhereEveryRankHasACardOfItsOwn) {
  const auto path_with = [](ThreadNetworkHub* hub, bool shared) {
    TensorPath path = TensorPath::kHost;
    RunRanks(2, [&](Transport& transport) {
      const std::unique_ptr<Device> device =
          MakeRemoteDevice(MakeDevice("cpu", {}).value(), hub,
                           shared ? "the card" : std::to_string(transport.rank()));
      const ProcessGrid grid({.data = 2}, {}, transport, *device);
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
    EXPECT_EQ(ProcessGrid({.data = 2}, {}, transport, *device).path(), TensorPath::kHost);
  });
}

// A grid of two pipeline ranks for `use`, on a network of devices.
template <typename F>
void OnPipelineOfTwo(const GridUse& use, F f) {
  ThreadNetworkHub hub;
  RunRanks(2, [&](Transport& transport) {
    const std::unique_ptr<Device> device =
        MakeRemoteDevice(MakeUntouchableDevice(), &hub, std::to_string(transport.rank()));
    f(ProcessGrid({.pipeline = 2}, use, transport, *device), *device);
  });
}

TEST(ProcessGrid, GroupsOfTheSameRanksShareANetworkGroupThatDoesTheWorkOfBoth) {
  const auto groups_for = [](GroupWork replicas, GroupWork experts) {
    ThreadNetworkHub hub;
    RunRanks(2, [&](Transport& transport) {
      const std::unique_ptr<Device> device =
          MakeRemoteDevice(MakeUntouchableDevice(), &hub, std::to_string(transport.rank()));
      const ProcessGrid grid(
          {.data = 2, .expert = 2},
          {{GridGroup::kReplicas, {.work = replicas}}, {GridGroup::kExperts, {.work = experts}}},
          transport, *device);
      EXPECT_EQ(grid.In(GridGroup::kExperts).size(), 2);
    });
    return hub.groups();
  };
  EXPECT_EQ(groups_for(GroupWork::kCollectives, GroupWork::kCollectives), 1);
  EXPECT_EQ(groups_for(GroupWork::kRoundedSums, GroupWork::kCollectives), 1);
  EXPECT_EQ(groups_for(GroupWork::kCollectives, GroupWork::kRoundedSums), 2);
  EXPECT_EQ(groups_for(GroupWork::kMessages, GroupWork::kCollectives), 1);
  EXPECT_EQ(groups_for(GroupWork::kMessages, GroupWork::kMessages), 0);
}

class GridUseDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(GridUseDeathTest, AGroupThatAGridIsNotForIsNamedOnEveryPath) {
  const GridUse use = {{GridGroup::kPipeline, {}}};
  EXPECT_EXIT(
      OnPipelineOfTwo(use, [](const ProcessGrid& grid, Device&) { grid.In(GridGroup::kExperts); }),
      ::testing::ExitedWithCode(1),
      "rank [01] asks for the experts group, which its grid was made");
  const auto on_host = [&] {
    RunRanks(1, [&](Transport& transport) {
      const std::unique_ptr<Device> device = MakeDevice("cpu", {}).value();
      ProcessGrid({}, use, transport, *device).data();
    });
  };
  EXPECT_EXIT(on_host(), ::testing::ExitedWithCode(1),
              "rank 0 asks for the data group, which its grid was made without: see "
              "parallel/grid_use.cc");
}

TEST_F(GridUseDeathTest, WhatAGroupIsNotForIsNamed) {
  const GridUse use = {{GridGroup::kPipeline, {.routes = {{Channel::kTied, 0, 1}}}}};
  const auto sum = [](const ProcessGrid& grid, Device& device) {
    const Storage storage(device, 4);
    grid.pipeline().AllReduce(Tensor(storage.data(), DType::kF32, {1}), Reduction::kSum);
  };
  EXPECT_EXIT(OnPipelineOfTwo(use, sum), ::testing::ExitedWithCode(1),
              "rank [01] of pipeline is asked for a collective but has messages alone: see "
              "parallel/grid_use.cc");
  const auto send = [](const ProcessGrid& grid, Device& device) {
    const Storage storage(device, 4);
    const Tensor tensor(storage.data(), DType::kF32, {1});
    if (grid.pipeline().rank() == 1) grid.pipeline().Send(tensor, 0, Channel::kTied);
  };
  EXPECT_EXIT(OnPipelineOfTwo(use, send), ::testing::ExitedWithCode(1),
              "rank 1 of pipeline has no route from 1 to 0 on channel 2");
}

}  // namespace
}  // namespace twinstream::testing
