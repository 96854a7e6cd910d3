#include "parallel/checked_communicator.h"

#include "gtest/gtest.h"
#include "parallel/host_communicator.h"
#include "tests/testing/run_ranks.h"

namespace twinstream::testing {
namespace {

CheckedCommunicator World(Transport& transport) {
  return CheckedCommunicator(
      std::make_unique<HostCommunicator>(transport, GridGroup::kWorld, AllRanks(transport.size())));
}

Tensor Of(std::vector<float>& values) {
  return Tensor(reinterpret_cast<std::byte*>(values.data()), DType::kF32,
                Shape{static_cast<int64_t>(values.size())});
}

TEST(CheckedCommunicator, CollectivesThatAgreeAreThoseOfTheOtherCommunicator) {
  RunRanks(3, [](Transport& transport) {
    CheckedCommunicator world = World(transport);
    const float mine = static_cast<float>(transport.rank() + 1);
    std::vector<float> values(3, mine);
    world.AllReduce(Of(values), Reduction::kSum);
    EXPECT_EQ(values, std::vector<float>(3, 6));
    values.assign(3, mine);
    world.AllGather(Of(values), {1, 1, 1});
    EXPECT_EQ(values, std::vector<float>({1, 2, 3}));
    values.assign(3, mine);
    world.ReduceScatter(Of(values), {1, 1, 1});
    EXPECT_EQ(values[static_cast<size_t>(transport.rank())], 6);
    values.assign(3, mine);
    world.Broadcast(Of(values), 2);
    EXPECT_EQ(values, std::vector<float>(3, 3));
    std::vector<float> received(3);
    values.assign(3, mine);
    const std::vector<int64_t> begins = {0, 1, 2}, counts = {1, 1, 1};
    world.AllToAll(Of(received), {begins, counts}, Of(values), {begins, counts});
    EXPECT_EQ(received, std::vector<float>({1, 2, 3}));
    world.Barrier();
  });
}

TEST(CheckedCommunicatorDeathTest, AMismatchNamesBothCalls) {
  const auto run = [](auto odd) {
    RunRanks(2, [&](Transport& transport) {
      CheckedCommunicator world = World(transport);
      std::vector<float> values(4);
      world.Barrier();
      transport.rank() == 1 ? odd(world, values) : world.AllReduce(Of(values), Reduction::kSum);
    });
  };
  using Values = std::vector<float>;
  EXPECT_EXIT(
      run([](CheckedCommunicator& world, Values&) { world.Barrier(); }),
      ::testing::ExitedWithCode(1),
      "collective 2 over world: member . calls (all-reduce of 4 x F32|barrier).*, but member "
      ". calls (barrier|all-reduce)");
  EXPECT_EXIT(run([](CheckedCommunicator& world, Values& values) {
                values.resize(5);
                world.AllReduce(Of(values), Reduction::kSum);
              }),
              ::testing::ExitedWithCode(1), "all-reduce of [45] x F32 .*all-reduce of [45] x F32");
  EXPECT_EXIT(run([](CheckedCommunicator& world, Values& values) {
                world.AllReduce(Of(values), Reduction::kMax);
              }),
              ::testing::ExitedWithCode(1), "argument [01].*argument [01]");
}

}  // namespace
}  // namespace twinstream::testing
