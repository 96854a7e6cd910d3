#include "parallel/host_communicator.h"

#include <atomic>
#include <chrono>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "parallel/process_grid.h"
#include "tests/testing/collective_checks.h"
#include "tests/testing/run_ranks.h"

namespace twinstream {
namespace {

using ::twinstream::testing::CheckCollectives;
using ::twinstream::testing::RunRanks;

Tensor Scalar(float& value) {
  return Tensor(reinterpret_cast<std::byte*>(&value), DType::kF32, {});
}

class HostCommunicatorTest : public ::testing::TestWithParam<int> {};

TEST_P(HostCommunicatorTest, EveryRankGetsTheRankOrderReductionBitForBit) {
  RunRanks(GetParam(), [](Transport& transport) { CheckCollectives(transport); });
}

TEST_P(HostCommunicatorTest, NobodyLeavesABarrierBeforeAllHaveEnteredIt) {
  std::atomic<int> entered{0};
  RunRanks(GetParam(), [&](Transport& transport) {
    ProcessGrid grid({.data = transport.size()}, transport);
    for (int round = 1; round <= 10; ++round) {
      if (round % transport.size() == transport.rank()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      ++entered;
      grid.world().Barrier();
      EXPECT_GE(entered, round * transport.size());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, HostCommunicatorTest, ::testing::Values(1, 2, 3, 5, 8));

TEST(HostCommunicator, AMaximumOverANaNIsNaNOnEveryRank) {
  for (int where = 0; where < 3; ++where) {
    RunRanks(3, [&](Transport& transport) {
      ProcessGrid grid({.data = 3}, transport);
      float value = transport.rank() == where ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
      grid.world().AllReduce(Scalar(value), Reduction::kMax);
      EXPECT_NE(value, value);
    });
  }
}

TEST(HostCommunicator, AxesOfOneGridDoNotMix) {
  RunRanks(8, [](Transport& transport) {
    ProcessGrid grid({.tensor = 2, .data = 2, .pipeline = 2}, transport);
    const GridCoordinates at = grid.at();
    float tensor = static_cast<float>(transport.rank()), data = tensor, pipeline = tensor;
    grid.tensor().AllReduce(Scalar(tensor), Reduction::kSum);
    grid.data().AllReduce(Scalar(data), Reduction::kSum);
    grid.pipeline().AllReduce(Scalar(pipeline), Reduction::kSum);
    EXPECT_EQ(tensor, 1 + 2 * (2 * at.data + 4 * at.pipeline));
    EXPECT_EQ(data, 2 + 2 * (at.tensor + 4 * at.pipeline));
    EXPECT_EQ(pipeline, 4 + 2 * (at.tensor + 2 * at.data));
    EXPECT_EQ(grid.tensor().rank(), at.tensor);
    EXPECT_EQ(grid.data().rank(), at.data);
    EXPECT_EQ(grid.pipeline().rank(), at.pipeline);
  });
}

using HostCommunicatorDeathTest = ::testing::Test;

TEST(HostCommunicatorDeathTest, RanksThatDisagreeAboutTheOperationNameIt) {
  const auto disagree = [] {
    RunRanks(2, [](Transport& transport) {
      transport.SetWaitPolicy({.timeout_seconds = 0.3});
      HostCommunicator tensor(transport, GridGroup::kTensor, {0, 1});
      float value = 1;
      if (transport.rank() == 0) {
        tensor.AllReduce(Scalar(value), Reduction::kSum);
      } else {
        tensor.Broadcast(Scalar(value), 0);
      }
    });
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(disagree(), ::testing::ExitedWithCode(1),
              "rank (0 waited 0.3 s in all-reduce over tensor for rank 1|1 waited 0.3 s in "
              "broadcast over tensor for rank 0)");
}

TEST(HostCommunicatorDeathTest, CountsMustCoverTheTensor) {
  const auto gather = [] {
    RunRanks(1, [](Transport& transport) {
      HostCommunicator data(transport, GridGroup::kData, {0});
      float value = 1;
      data.AllGather(Scalar(value), {2});
    });
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(gather(), ::testing::ExitedWithCode(1),
              "all-gather over data: 1 counts with sum 2 for 1 ranks and 1 elements");
}

}  // namespace
}  // namespace twinstream
