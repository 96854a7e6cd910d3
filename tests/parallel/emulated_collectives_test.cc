// CudaCollectives, the network of cards, on emulated ones: each rank has its own.
#include <chrono>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "core/cuda/collectives.h"
#include "core/cuda/device.h"
#include "core/cuda/emulated/runtime.h"
#include "gtest/gtest.h"
#include "parallel/device_communicator.h"
#include "parallel/host_communicator.h"
#include "parallel/process_grid.h"
#include "tests/testing/collective_checks.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/uploaded_communicator.h"
#include "tests/testing/vectors.h"

namespace twinstream::testing {
namespace {

using ::testing::ExitedWithCode;

constexpr int kMostRanks = 4;

void Pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// This rank's card, and its communicator with all others.
struct OnCard {
  // By default long: under a sanitizer emulated kernels take a hundred times as long.
  OnCard(Transport& transport, const GroupUse& use, double timeout_seconds = 600)
      : device(transport.rank()),
        world(std::make_unique<HostCommunicator>(transport, GridGroup::kWorld,
                                                 AllRanks(transport.size())),
              device, use, timeout_seconds) {}

  CudaDevice device;
  DeviceCommunicator world;
};

class CudaCollectivesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { gpu::SetEmulatedHost({.cards = kMostRanks}); }
};

class CudaCollectivesOfRanksTest : public CudaCollectivesTest,
                                   public ::testing::WithParamInterface<int> {};

TEST_P(CudaCollectivesOfRanksTest, DoWhatTheOperationsSay) {
  RunRanks(GetParam(), [](Transport& transport) {
    OnCard own(transport, AllWorkOf(transport.size()));
    UploadedCommunicator world(own.world, own.device);
    CheckTensors(world);
  });
}

// Without the host between them: what the device computes before and after an operation.
TEST_P(CudaCollectivesOfRanksTest, TakeTheirTurnsWithTheDevice) {
  RunRanks(GetParam(), [](Transport& transport) {
    OnCard own(transport, {.work = GroupWork::kCollectives});
    CudaDevice& device = own.device;
    constexpr int64_t kElements = 1000;
    const Storage storage(device, kElements * SizeOf(DType::kF32));
    const Tensor tensor(storage.data(), DType::kF32, {kElements});
    std::vector<float> host(kElements, 1);
    device.CopyIn(tensor, host.data());
    float expected = 1;
    for (int i = 0; i < 4; ++i) {
      device.ops().Scale(tensor, 2);
      own.world.AllReduce(tensor, Reduction::kSum);
      device.ops().Scale(tensor, 0.25F);
      own.world.Broadcast(tensor, 0);
      expected *= 0.5F * static_cast<float>(transport.size());
    }
    device.CopyOut(host.data(), tensor);
    EXPECT_EQ(host, std::vector<float>(kElements, expected));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaCollectivesOfRanksTest, ::testing::Range(2, kMostRanks + 1));

// NCCL refuses ranks that share a card: they do without it.
TEST_F(CudaCollectivesTest, AreTakenWhereEveryRankHasACardOfItsOwn) {
  for (const bool shared : {false, true}) {
    RunRanks(3, [=](Transport& transport) {
      CudaDevice device(shared ? transport.rank() / 2 : transport.rank());
      const ProcessGrid grid({.data = 3}, {}, transport, device);
      EXPECT_EQ(grid.path(), shared ? TensorPath::kStaged : TensorPath::kNetwork);
    });
  }
}

// With one rank, or another would go on with its work.
TEST_F(CudaCollectivesTest, ABarrierIsBehindTheWorkOfTheDevice) {
  RunRanks(1, [](Transport& transport) {
    OnCard own(transport, {.work = GroupWork::kCollectives});
    CudaEvent given;
    given.Record(own.device.stream());
    EXPECT_FALSE(given.Happened());
    own.world.Barrier();
    EXPECT_TRUE(given.Happened());
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
  gpu::AllowWork(device.stream(), gpu::kAllWork);
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

// ---- Rounded sums that take several rounds of their scratch memory.

float Addend(int rank, int64_t i) { return FarApart(i * kMostRanks + rank); }

struct Piece {
  int64_t begin = 0, elements = 0;
};
// Of how many elements the value is the sum over the ranks, in their order and in float32.
int64_t RightSums(const std::vector<float>& values, Piece piece) {
  int64_t right = 0;
  for (int64_t i = piece.begin; i < piece.begin + piece.elements; ++i) {
    float sum = RoundToBFloat16(Addend(0, i));
    for (int r = 1; r < kMostRanks; ++r) sum += RoundToBFloat16(Addend(r, i));
    right += values[static_cast<size_t>(i)] == sum ? 1 : 0;
  }
  return right;
}

// The scratch memory is cut into a piece to and one from every rank: two of them need a second
// round here, in which the others have nothing.
TEST_F(CudaCollectivesTest, SumUpRoundedAddendsOfMoreThanTheirScratchMemory) {
  RunRanks(kMostRanks, [](Transport& transport) {
    const int64_t free = CudaDevice(transport.rank()).FreeBytes();
    OnCard own(transport, {.work = GroupWork::kRoundedSums});
    const int64_t scratch = free - own.device.FreeBytes();
    ASSERT_GT(scratch, 0);
    const int64_t round = scratch / (2 * kMostRanks * SizeOf(DType::kBF16));
    const std::vector<int64_t> counts = {7, round + 3, 0, round + 1};
    const int64_t elements = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const int rank = transport.rank();
    std::vector<float> values;
    values.reserve(static_cast<size_t>(elements));
    for (int64_t i = 0; i < elements; ++i) values.push_back(Addend(rank, i));
    const Storage storage(own.device, elements * SizeOf(DType::kF32));
    const Tensor tensor(storage.data(), DType::kF32, {elements});
    own.device.CopyIn(tensor, values.data());
    own.world.ReduceScatterAsBFloat16(tensor, counts);
    own.device.CopyOut(values.data(), tensor);
    const Piece piece = {std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0}),
                         counts[static_cast<size_t>(rank)]};
    EXPECT_EQ(RightSums(values, piece), piece.elements) << "on rank " << rank;
  });
}

// ---- What ends the process.

// Two ranks, of which the second joins but comes to no operation.
template <typename F>
void WithoutTheOther(GroupWork work, double timeout_seconds, F first) {
  gpu::SetEmulatedHost({.cards = 2});
  RunRanks(2, [&](Transport& transport) {
    OnCard own(transport, {.work = work}, timeout_seconds);
    const Storage storage(own.device, 2 * sizeof(float));
    if (transport.rank() == 1) Pause(50);
    first(own.world, Tensor(storage.data(), DType::kF32, {2}));
    own.device.Synchronize();
    Die("the operation has ended");
  });
}

class CudaCollectivesDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CudaCollectivesDeathTest, AFailureDuringAnOperationIsToldWithItsName) {
  const auto fail = [](Communicator& world, Tensor tensor) {
    world.AllReduce(tensor, Reduction::kSum);
    gpu::FailNccl(ncclRemoteError);
  };
  EXPECT_EXIT(WithoutTheOther(GroupWork::kCollectives, 60, fail), ExitedWithCode(1),
              "^all-reduce over world failed: remote process exited or there was a network error: "
              "FailNccl was called \\[");
}

TEST_F(CudaCollectivesDeathTest, AFailureThatAnOperationMeetsIsToldWithItsName) {
  const auto fail = [](Communicator& world, Tensor tensor) {
    gpu::FailNccl(ncclSystemError);
    world.Broadcast(tensor, 0);
  };
  EXPECT_EXIT(WithoutTheOther(GroupWork::kCollectives, 60, fail), ExitedWithCode(1),
              "^communication over world: unhandled system error: FailNccl was called \\(during "
              "broadcast\\) \\[");
}

TEST_F(CudaCollectivesDeathTest, AMemberThatDoesNotComeIsToldWithTheOperationsName) {
  const auto gather = [](Communicator& world, Tensor tensor) { world.AllGather(tensor, {1, 1}); };
  EXPECT_EXIT(
      WithoutTheOther(GroupWork::kCollectives, 1, gather), ExitedWithCode(1),
      "^all-gather over world has not ended for [0-9]+ s: another rank of the group has failed "
      "or has not come to it \\[");
}

TEST_F(CudaCollectivesDeathTest, AMemberThatDoesNotJoinIsTold) {
  const auto join = [] {
    CudaDevice device(/*card=*/0);
    device.network()->Join({.id = device.network()->NewId(),
                            .rank = 0,
                            .size = 2,
                            .name = "tensor",
                            .timeout_seconds = 1});
  };
  EXPECT_EXIT(
      join(), ExitedWithCode(1),
      "^connection over tensor has not ended for [0-9]+ s: another rank of the group has failed "
      "or has not come to it \\[");
}

// Whoever notices it first: the watch, or the host that waits.
TEST_F(CudaCollectivesDeathTest, ACardThatBreaksIsTold) {
  const auto fail = [](Communicator& world, Tensor tensor) {
    world.AllReduce(tensor, Reduction::kSum);
    std::thread([] {
      Pause(0.2);
      gpu::BreakCard(0, cudaErrorLaunchFailure);
    }).detach();
  };
  EXPECT_EXIT(WithoutTheOther(GroupWork::kCollectives, 60, fail), ExitedWithCode(1),
              "^cuda(EventQuery|StreamSynchronize: the work before it): unspecified launch failure "
              "\\(cudaErrorLaunchFailure\\) on card [01] ");
}

TEST_F(CudaCollectivesDeathTest, RoundedSumsWithoutTheirMemoryAreRefused) {
  const auto sum = [](Communicator& world, Tensor tensor) {
    world.ReduceScatterAsBFloat16(tensor, {1, 1});
  };
  EXPECT_EXIT(WithoutTheOther(GroupWork::kCollectives, 60, sum), ExitedWithCode(1),
              "^rounded sums over world: join it with GroupWork::kRoundedSums ");
}

TEST_F(CudaCollectivesDeathTest, ACardWithoutMemoryForThemIsToldWithItsNumbers) {
  const auto join = [] {
    gpu::SetEmulatedHost({.cards = 2, .memory_bytes = int64_t{80} << 20});
    CudaDevice device(/*card=*/1);
    device.network()->Join({.id = device.network()->NewId(),
                            .rank = 0,
                            .size = 1,
                            .work = GroupWork::kRoundedSums,
                            .name = "replicas"});
  };
  EXPECT_EXIT(join(), ExitedWithCode(1),
              "^card 1 has no 33554432 bytes of memory left for sums over ranks \\(16777216 of its "
              "83886080 bytes are free\\): see with nvidia-smi who else uses it, or use "
              "parallel.recompute, a smaller train.microbatch or a smaller model \\[");
}

}  // namespace
}  // namespace twinstream::testing
