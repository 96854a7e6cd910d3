// CudaCollectives, the network of cards, on emulated ones: each rank has its own.
#include <chrono>
#include <limits>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "core/cuda/collectives.h"
#include "core/cuda/device.h"
#include "core/cuda/emulated/nccl_control.h"
#include "core/cuda/emulated/runtime.h"
#include "core/cuda/stream.h"
#include "gtest/gtest.h"
#include "parallel/device_communicator.h"
#include "parallel/host_communicator.h"
#include "tests/testing/collective_checks.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/uploaded_communicator.h"

namespace twinstream::testing {
namespace {

using ::testing::ExitedWithCode;

constexpr int kMostRanks = 4;

void Pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// A rank's card, and the group of all.
struct Member {
  explicit Member(Transport& transport)
      : device(transport.rank()),
        world(std::make_unique<HostCommunicator>(transport, GridGroup::kWorld,
                                                 AllRanks(transport.size())),
              device, AllWorkOf(transport.size()), /*timeout_seconds=*/60) {}

  CudaDevice device;
  DeviceCommunicator world;
};

class CudaCollectivesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { gpu::SetEmulatedHost({.cards = kMostRanks}); }
};
class CudaCollectivesOfRanksTest : public CudaCollectivesTest,
                                   public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CudaCollectivesOfRanksTest, ::testing::Range(2, kMostRanks + 1));

TEST_P(CudaCollectivesOfRanksTest, DoWhatTheOperationsSay) {
  RunRanks(GetParam(), [](Transport& transport) {
    Member member(transport);
    UploadedCommunicator world(member.world, member.device);
    CheckTensors(world);
  });
}

// Without the host between them: what the device computes before and after an operation.
TEST_P(CudaCollectivesOfRanksTest, TakeTheirTurnsWithTheDevice) {
  RunRanks(GetParam(), [](Transport& transport) {
    Member member(transport);
    CudaDevice& device = member.device;
    constexpr int64_t kElements = 1000;
    const Storage storage(device, kElements * SizeOf(DType::kF32));
    const Tensor tensor(storage.data(), DType::kF32, {kElements});
    std::vector<float> host(kElements, 1);
    device.CopyIn(tensor, host.data());
    float expected = 1;
    for (int i = 0; i < 4; ++i) {
      device.ops().Scale(tensor, 2);
      member.world.AllReduce(tensor, Reduction::kSum);
      device.ops().Scale(tensor, 0.25F);
      member.world.Broadcast(tensor, 0);
      expected *= 0.5F * static_cast<float>(transport.size());
    }
    device.CopyOut(host.data(), tensor);
    EXPECT_EQ(host, std::vector<float>(kElements, expected));
  });
}

// With one rank, or another would go on with its work.
TEST_F(CudaCollectivesTest, ABarrierIsBehindTheWorkOfTheDevice) {
  RunRanks(1, [](Transport& transport) {
    CudaDevice device(/*card=*/0);
    DeviceCommunicator world(
        std::make_unique<HostCommunicator>(transport, GridGroup::kWorld, AllRanks(1)), device,
        {.work = GroupWork::kCollectives}, /*timeout_seconds=*/60);
    CudaEvent given;
    given.Record(device.stream());
    EXPECT_FALSE(given.Happened());
    world.Barrier();
    EXPECT_TRUE(given.Happened());
  });
}

// A group has 32 MiB for the rounded addends that it sends and receives.
TEST_F(CudaCollectivesTest, SumRoundedPiecesThatTakeSeveralRounds) {
  constexpr int kRanks = 4;
  constexpr int64_t kOfARound = (int64_t{32} << 20) / (2 * kRanks * 2);
  const std::vector<int64_t> counts = {100, kOfARound + 1000, 0, 7};
  const int64_t elements = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const auto addend = [](int rank, int64_t i) { return static_cast<float>((i + 5 * rank) % 31); };
  RunRanks(kRanks, [&](Transport& transport) {
    Member member(transport);
    const int rank = transport.rank();
    std::vector<float> values(static_cast<size_t>(elements));
    for (int64_t i = 0; i < elements; ++i) values[static_cast<size_t>(i)] = addend(rank, i);
    const Storage storage(member.device, elements * SizeOf(DType::kF32));
    const Tensor tensor(storage.data(), DType::kF32, {elements});
    member.device.CopyIn(tensor, values.data());
    member.world.ReduceScatterAsBFloat16(tensor, counts);
    member.device.CopyOut(values.data(), tensor);
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
    int64_t wrong = 0;
    for (int64_t i = begin; i < begin + counts[static_cast<size_t>(rank)]; ++i) {
      float sum = 0;
      for (int r = 0; r < kRanks; ++r) sum += addend(r, i);
      if (values[static_cast<size_t>(i)] != sum) ++wrong;
    }
    EXPECT_EQ(wrong, 0) << "rank " << rank;
  });
}

// Only the network's own time counts.
TEST_F(CudaCollectivesTest, AreNotTimedWhileTheDeviceIsBusy) {
  CudaDevice device(/*card=*/0);
  DeviceNetwork& network = *device.network();
  const std::unique_ptr<DeviceCollectives> group =
      network.Join({.id = network.NewId(), .name = "alone", .timeout_seconds = 0.3});
  const Storage storage(device, SizeOf(DType::kF32));
  device.Synchronize();
  const int64_t done = gpu::PiecesIssued(device.stream());
  gpu::AllowWork(device.stream(), done);
  group->AllReduce(Tensor(storage.data(), DType::kF32, {1}), Reduction::kSum);
  gpu::AllowWork(device.stream(), done);  // and all that need not wait for it goes on
  Pause(0.8);
  gpu::AllowWork(device.stream(), std::numeric_limits<int64_t>::max());
}

// Memory of the device for rounded sums alone.
TEST_F(CudaCollectivesTest, TakeAndLeaveWhatTheirWorkNeeds) {
  CudaDevice device(/*card=*/0);
  DeviceNetwork& network = *device.network();
  const Storage storage(device, SizeOf(DType::kF32));
  const Tensor one(storage.data(), DType::kF32, {1});
  for (GroupWork work : {GroupWork::kCollectives, GroupWork::kRoundedSums}) {
    const int64_t free = device.FreeBytes();
    std::unique_ptr<DeviceCollectives> group =
        network.Join({.id = network.NewId(), .work = work, .name = "alone"});
    EXPECT_EQ(gpu::NcclCommunicators(), 1);
    EXPECT_EQ(free - device.FreeBytes(),
              work == GroupWork::kRoundedSums ? int64_t{32} << 20 : int64_t{0});
    group->AllReduce(one, Reduction::kSum);
    group.reset();  // which waits for it
    EXPECT_EQ(gpu::NcclCommunicators(), 0);
    EXPECT_EQ(device.FreeBytes(), free);
  }
}

TEST_F(CudaCollectivesTest, EndTheProcessWhenTheNetworkFails) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fail = [] {
    RunRanks(2, [](Transport& transport) {
      Member member(transport);
      const Storage storage(member.device, SizeOf(DType::kF32));
      if (transport.rank() == 0) {
        member.world.AllReduce(Tensor(storage.data(), DType::kF32, {1}), Reduction::kSum);
        gpu::FailNccl(ncclRemoteError);
      }
      Pause(30);
      Die("nobody has noticed the failure");
    });
  };
  EXPECT_EXIT(fail(), ExitedWithCode(1),
              "all-reduce over world failed: remote process exited or there was a network error: "
              "FailNccl was called");
}

}  // namespace
}  // namespace twinstream::testing
