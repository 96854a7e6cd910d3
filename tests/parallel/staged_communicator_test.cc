#include "parallel/staged_communicator.h"

#include "gtest/gtest.h"
#include "parallel/host_communicator.h"
#include "tests/testing/collective_checks.h"
#include "tests/testing/counted_device.h"
#include "tests/testing/rank_devices.h"
#include "tests/testing/recording_device.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/uploaded_communicator.h"

namespace twinstream::testing {
namespace {

StagedCommunicator Staged(Transport& transport, Device& device) {
  return StagedCommunicator(
      std::make_unique<HostCommunicator>(transport, GridGroup::kWorld, AllRanks(transport.size())),
      device);
}

class StagedCommunicatorTest : public ::testing::TestWithParam<int> {};

// The device's memory is not where the host could touch it.
TEST_P(StagedCommunicatorTest, GivesTheBitsOfTheHostForTensorsOfADevice) {
  RunRanks(GetParam(), [](Transport& transport) {
    const std::unique_ptr<Device> device = MakeUntouchableDevice();
    StagedCommunicator staged = Staged(transport, *device);
    UploadedCommunicator world(staged, *device);
    CheckTensors(world);
  });
}

// The copies counted are the communicator's alone.
TEST_P(StagedCommunicatorTest, StagesInMemoryOfAllocateHostAndGivesItBack) {
  RunRanks(GetParam(), [](Transport& transport) {
    std::unique_ptr<Device> untouchable = MakeUntouchableDevice();
    Device& uncounted = *untouchable;
    CountedDevice device(std::move(untouchable));
    {
      StagedCommunicator staged = Staged(transport, device);
      UploadedCommunicator world(staged, uncounted);
      CheckTensors(world);
    }
    const CountedDevice::Counts counts = device.counts();
    EXPECT_GT(counts.copies_in, 0);
    EXPECT_GT(counts.copies_out, 0);
    EXPECT_EQ(counts.pageable_copies, 0);
    EXPECT_EQ(counts.host_held, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, StagedCommunicatorTest, ::testing::Values(1, 2, 3, 5));

// Of three parts one is in its place and one is empty.
TEST(StagedCommunicator, AGroupOfOneCopiesOnTheDeviceAndNowhereElse) {
  std::vector<std::string> calls;
  RunRanks(1, [&](Transport& transport) {
    RecordingDevice device(calls);
    StagedCommunicator staged = Staged(transport, device);
    std::vector<float> memory(12);
    const Tensor tensor(reinterpret_cast<std::byte*>(memory.data()), DType::kF32, {6, 2});
    const std::vector<int64_t> all = {12}, rows = {2, 0, 2}, from = {0, 2, 4}, to = {0, 4, 2};
    staged.AllReduce(tensor, Reduction::kSum);
    staged.AllGather(tensor, all);
    staged.ReduceScatter(tensor, all);
    staged.ReduceScatterAsBFloat16(tensor, all);
    staged.Broadcast(tensor, 0);
    staged.AllToAll(tensor, {to, rows}, tensor, {from, rows});
  });
  EXPECT_EQ(calls, std::vector<std::string>{"Copy"});
}

TEST(StagedCommunicatorDeathTest, AMessageIsWaitedForOnce) {
  const auto wait_twice = [] {
    RunRanks(1, [](Transport& transport) {
      const std::unique_ptr<Device> device = MakeUntouchableDevice();
      StagedCommunicator staged = Staged(transport, *device);
      const Storage memory(*device, 8);
      const Tensor tensor(memory.data(), DType::kF32, {2});
      const Ticket sent = staged.Send(tensor, 0, Channel::kActivation);
      staged.Receive(tensor, 0, Channel::kActivation);
      staged.Wait(sent);
      staged.Wait(sent);
    });
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(wait_twice(), ::testing::ExitedWithCode(1), "send over world is waited for twice");
}

}  // namespace
}  // namespace twinstream::testing
