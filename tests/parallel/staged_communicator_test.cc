#include "parallel/staged_communicator.h"

#include "gtest/gtest.h"
#include "parallel/host_communicator.h"
#include "tests/testing/collective_checks.h"
#include "tests/testing/rank_devices.h"
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

INSTANTIATE_TEST_SUITE_P(Sizes, StagedCommunicatorTest, ::testing::Values(1, 2, 3, 5));

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
