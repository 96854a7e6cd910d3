// CudaDevice's memory and copies, on emulated cards: how much there is, what is said when there is
// none, and when the host may touch what is copied.
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/emulated/runtime.h"
#include "core/ops.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace twinstream::testing {
namespace {

using ::testing::Each;
using ::testing::ExitedWithCode;

constexpr int64_t kMiB = int64_t{1} << 20;

Tensor Floats(const Storage& storage) {
  return {storage.data(), DType::kF32, {storage.bytes() / SizeOf(DType::kF32)}};
}

// ---- How much there is. A device takes 64 MiB for itself.

class CudaMemoryTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { gpu::SetEmulatedHost({.cards = 2, .memory_bytes = 80 * kMiB}); }
};

TEST_F(CudaMemoryTest, FreeBytesAreWhatCanStillBeAllocated) {
  CudaDevice device(/*card=*/1);
  const int64_t free = device.FreeBytes();
  EXPECT_EQ(free, 16 * kMiB);
  {
    const Storage some(device, 4096);
    EXPECT_EQ(device.FreeBytes(), free - 4096);
    const Storage rest(device, free - 4096);
    EXPECT_EQ(device.FreeBytes(), 0);
  }
  EXPECT_EQ(device.FreeBytes(), free);
  CudaDevice other(/*card=*/0);
  const Storage elsewhere(other, 4096);
  EXPECT_EQ(device.FreeBytes(), free);
}

TEST_F(CudaMemoryTest, NewMemoryIsZero) {
  CudaDevice device(/*card=*/0);
  for (int i = 0; i < 2; ++i) {  // perhaps the same memory again
    const Storage storage(device, 4 * 1000);
    std::vector<float> host(1000, 1);
    device.CopyOut(host.data(), Floats(storage));
    EXPECT_THAT(host, Each(0));
    host.assign(1000, 1);
    device.CopyIn(Floats(storage), host.data());
  }
}

TEST_F(CudaMemoryTest, TheHostMayChangeWhatItHasCopiedAndReadWhatItIsGiven) {
  CudaDevice device(/*card=*/0);
  const Storage storage(device, 2 * sizeof(float));
  const Tensor both = Floats(storage), first(storage.data(), DType::kF32, {1}),
               second(storage.data() + sizeof(float), DType::kF32, {1});
  HostArray<float> locked(device, 1), locked_result(device, 2);
  std::vector<float> pageable(1), pageable_result(2);
  for (const float value : {1.F, 2.F}) {
    locked[0] = value;
    device.CopyIn(first, locked.data());
    locked[0] = -1;
    pageable[0] = value + 10;
    device.CopyIn(second, pageable.data());
    pageable[0] = -1;
    device.ops().Scale(both, 2);
    device.CopyOut(locked_result.data(), both);
    EXPECT_EQ(locked_result[0], 2 * value);
    EXPECT_EQ(locked_result[1], 2 * value + 20);
    device.ops().Scale(both, 2);
    device.CopyOut(pageable_result.data(), both);
    EXPECT_EQ(pageable_result, (std::vector<float>{4 * value, 4 * value + 40}));
  }
}

// Any thread may ask for memory and copy, whatever card is its current one.
TEST_F(CudaMemoryTest, MemoryIsOfItsCardWhateverIsCurrent) {
  CudaDevice device(/*card=*/1);
  const int64_t free = device.FreeBytes();
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const Storage storage(device, 3 * sizeof(int32_t));
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(device.FreeBytes(), free - storage.bytes());
  const Tensor tensor(storage.data(), DType::kI32, {3});
  const std::vector<int32_t> sent = {1, 2, 3};
  std::vector<int32_t> received(3);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  device.CopyIn(tensor, sent.data());
  device.CopyOut(received.data(), tensor);
  EXPECT_EQ(received, sent);
}

TEST_F(CudaMemoryTest, ACopyOntoItselfIsNone) {
  CudaDevice device(/*card=*/1);
  const Storage storage(device, SizeOf(DType::kI32));
  const Tensor tensor(storage.data(), DType::kI32, {1});
  device.Synchronize();
  const int64_t issued = gpu::PiecesIssued(device.stream());
  device.Copy(tensor, tensor);
  EXPECT_EQ(gpu::PiecesIssued(device.stream()), issued);
}

// ---- What ends the process.

class CudaMemoryDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CudaMemoryDeathTest, WhatACardLacksIsToldWithItsNumbers) {
  const auto allocate = [] {
    gpu::SetEmulatedHost({.cards = 2, .memory_bytes = 80 * kMiB});
    CudaDevice device(/*card=*/1), other(/*card=*/0);
    const Storage some(device, 6 * kMiB);
    const Storage too_much(device, 10 * kMiB + 1);
  };
  EXPECT_EXIT(allocate(), ExitedWithCode(1),
              "^card 1 has no 10485761 bytes of memory left \\(10485760 of its 83886080 bytes are "
              "free\\): use more ranks, parallel.recompute, a smaller train.microbatch or a "
              "smaller model \\[");
}

// Of what a device takes before anybody asks for memory.
TEST_F(CudaMemoryDeathTest, ACardThatHasNoMemoryForADeviceIsToldWithItsNumbers) {
  const auto make = [](int64_t megabytes) {
    gpu::SetEmulatedHost({.cards = 2, .memory_bytes = megabytes * kMiB});
    CudaDevice(/*card=*/1);
  };
  EXPECT_EXIT(make(16), ExitedWithCode(1),
              "^card 1 has no 33554432 bytes of memory left \\(16777216 of its 16777216 bytes are "
              "free\\): use ");
  EXPECT_EXIT(
      make(40), ExitedWithCode(1),
      "^card 1 has no 33554432 bytes of memory left for the workspace of cuBLASLt "
      "\\(8388608 of its 41943040 bytes are free\\): see with nvidia-smi who else uses it, or use "
      "parallel.recompute, a smaller train.microbatch or a smaller model \\[");
}

// More than the addresses of a process.
TEST_F(CudaMemoryDeathTest, WhatTheHostLacksIsToldWithItsNumbers) {
  const auto allocate = [] {
    gpu::SetEmulatedHost({.cards = 2});
    CudaDevice device(/*card=*/1);
    const HostArray<float> too_much(device, int64_t{1} << 46);
  };
  EXPECT_EXIT(allocate(), ExitedWithCode(1),
              "^the host of card 1 has no 281474976710656 bytes of memory left that it could "
              "page-lock: use fewer ranks on it, a smaller train.microbatch or a host with more "
              "free memory \\[");
}

// Another card would lose some hundred MB of memory to this process.
TEST_F(CudaMemoryDeathTest, NoOtherCardIsUsed) {
  const auto use = [] {
    {
      gpu::SetEmulatedHost({.cards = 2});
      CudaDevice device(/*card=*/1);
      const auto with_another_current = [&](auto call) {
        Check(cudaSetDevice(0), "cudaSetDevice");
        return call();
      };
      std::byte* const data = with_another_current([&] { return device.Allocate(8); });
      std::byte* const host = with_another_current([&] { return device.AllocateHost(8); });
      with_another_current([&] { return device.FreeBytes(); });
      with_another_current([&] { device.CopyIn(Tensor(data, DType::kI32, {2}), host); });
      with_another_current([&] { device.CopyOut(host, Tensor(data, DType::kI32, {2})); });
      with_another_current([&] { device.FreeHost(host, 8); });
      with_another_current([&] { device.Free(data, 8); });
    }
    std::exit(gpu::IsInUse(1) && !gpu::IsInUse(0) ? 0 : 2);
  };
  EXPECT_EXIT(use(), ExitedWithCode(0), "");
}

// Two devices of one thread, the second of which is current, and a matrix on each.
struct OnTwoCards {
  static Tensor Matrix(const Storage& storage) { return {storage.data(), DType::kF32, {2, 2}}; }

  CudaDevice first{/*card=*/0}, second{/*card=*/1};
  Storage on_first{first, 16}, on_second{second, 16};
  Tensor far = Matrix(on_first), near = Matrix(on_second);
};

TEST_F(CudaMemoryDeathTest, WorkWithMemoryOfAnotherCardIsRefused) {
  const auto work = [](auto issue) {
    gpu::SetEmulatedHost({.cards = 2});
    OnTwoCards cards;
    issue(cards.second, cards.near, cards.far);
  };
  const std::string refused = "work on card 1 with memory of card 0";
  EXPECT_EXIT(work([](auto& device, Tensor near, Tensor far) { device.Copy(near, far); }),
              ExitedWithCode(1), refused);
  EXPECT_EXIT(work([](auto& device, Tensor, Tensor far) { device.ops().Zero(far); }),
              ExitedWithCode(1), refused);
  EXPECT_EXIT(work([](auto& device, Tensor near, Tensor far) { device.ops().Add(near, far); }),
              ExitedWithCode(1), refused);
  EXPECT_EXIT(
      work([](auto& device, Tensor near, Tensor far) { device.ops().Matmul(near, near, far, {}); }),
      ExitedWithCode(1), refused);
}

TEST_F(CudaMemoryDeathTest, WorkOfAThreadWhoseCardIsAnotherIsRefused) {
  const auto work = [] {
    gpu::SetEmulatedHost({.cards = 2});
    OnTwoCards cards;
    cards.first.ops().Scale(cards.far, 2);
  };
  EXPECT_EXIT(work(), ExitedWithCode(1), "Scale.* for a stream of card 0 while card 1 is current");
}

// The host waits for work that would never end.
TEST_F(CudaMemoryDeathTest, ACardThatBreaksWhileItsWorkIsAwaitedIsTold) {
  const auto wait = [](auto await) {
    CudaDevice device(/*card=*/0);
    const Storage storage(device, sizeof(float));
    gpu::AllowWork(device.stream(), gpu::PiecesIssued(device.stream()));
    device.ops().Scale(Floats(storage), 2);
    std::thread failure([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      gpu::BreakCard(0, cudaErrorLaunchFailure);
    });
    await(device, storage);
    Die("the wait has ended");
  };
  const std::string told =
      "^cudaStreamSynchronize: the work before it: unspecified launch failure "
      "\\(cudaErrorLaunchFailure\\) on card 0 ";
  EXPECT_EXIT(wait([](CudaDevice& device, const Storage&) { device.Synchronize(); }),
              ExitedWithCode(1), told);
  EXPECT_EXIT(wait([](CudaDevice& device, const Storage& storage) {
                HostArray<float> host(device, 1);
                device.CopyOut(host.data(), Floats(storage));
              }),
              ExitedWithCode(1), told);
}

}  // namespace
}  // namespace twinstream::testing
