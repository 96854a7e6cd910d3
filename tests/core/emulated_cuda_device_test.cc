// CudaDevice on emulated cards: what it does where another card is current, where memory runs out,
// and where a recording fails.
#include <cstdlib>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/emulated/runtime.h"
#include "gtest/gtest.h"

namespace twinstream::testing {
namespace {

using ::testing::ExitedWithCode;

constexpr int kCard = 2;

class CudaDeviceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { gpu::SetEmulatedHost({.cards = kCard + 1}); }
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Any thread may ask for memory and copy, whatever card is its current one.
TEST_F(CudaDeviceTest, MemoryIsOfItsCardWhateverIsCurrent) {
  CudaDevice device(kCard);
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

TEST_F(CudaDeviceTest, ACopyOntoItselfIsNone) {
  CudaDevice device(kCard);
  const Storage storage(device, SizeOf(DType::kI32));
  const Tensor tensor(storage.data(), DType::kI32, {1});
  device.Synchronize();
  const int64_t issued = gpu::PiecesIssued(device.stream());
  device.Copy(tensor, tensor);
  EXPECT_EQ(gpu::PiecesIssued(device.stream()), issued);
}

// Another card would lose some hundred MB of memory to this process.
TEST_F(CudaDeviceTest, NoOtherCardIsUsed) {
  const auto use = [] {
    {
      CudaDevice device(kCard);
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
    std::exit(gpu::IsInUse(kCard) && !gpu::IsInUse(0) ? 0 : 2);
  };
  EXPECT_EXIT(use(), ExitedWithCode(0), "");
}

TEST_F(CudaDeviceTest, MemoryThatRunsOutIsNamedWithWhatHelps) {
  const auto fill = [] {
    gpu::SetEmulatedHost({.cards = 1, .memory_bytes = int64_t{1} << 30});
    CudaDevice device(/*card=*/0);
    device.Allocate(int64_t{1} << 30);
  };
  EXPECT_EXIT(fill(), ExitedWithCode(1),
              "card 0 has no 1073741824 bytes of memory left \\([0-9]+ of its 1073741824 bytes are "
              "free\\): use more ranks");
}

TEST_F(CudaDeviceTest, ARecordingThatACallBreaksIsNoneAndLeavesNoError) {
  CudaDevice device(kCard);
  void* data = nullptr;
  const auto work = device.Record([&] { cudaMalloc(&data, 4); });
  EXPECT_EQ(work, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the next launch would be blamed for it";
  EXPECT_NE(device.Record([] {}), nullptr);
}

TEST_F(CudaDeviceTest, WhatARecordingForbidsEndsTheProcess) {
  CudaDevice device(kCard);
  EXPECT_EXIT(device.Record([&] { device.Record([] {}); }), ExitedWithCode(1),
              "another recording begins while the device records its work");
  EXPECT_EXIT(device.Record([&] { device.AllocateHost(1); }), ExitedWithCode(1),
              "memory of the host is allocated while the device records its work");
}

}  // namespace
}  // namespace twinstream::testing
