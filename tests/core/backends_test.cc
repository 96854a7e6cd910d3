#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "core/cpu/device.h"
#include "core/device.h"
#include "core/device_collectives.h"
#include "core/ops.h"
#include "tests/testing/vectors.h"

namespace twinstream {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(BackendsTest, TheCpuIsAlwaysThere) { EXPECT_EQ(MakeDevice("cpu").value()->name(), "cpu"); }

// lse [T] of attention over bf16, whose scores each instruction set sums up in its own order.
std::vector<float> LseOfAttention(Device& device) {
  constexpr int64_t T = 100, D = 64;
  std::vector<float> q = testing::RandomFloats(T * D, 1, DType::kBF16),
                     k = testing::RandomFloats(T * D, 2, DType::kBF16), v = k, out(q.size()),
                     lse(T);
  const Shape heads = {1, 1, T, D};
  const testing::Lent lent_q(q, heads, DType::kBF16), lent_k(k, heads, DType::kBF16),
      lent_v(v, heads, DType::kBF16), lent_out(out, {T, D}, DType::kBF16);
  device.ops().AttentionForward(
      {.batch = 1, .sequence = T, .heads = 1, .kv_heads = 1, .head_dim = D},
      {.q = lent_q,
       .k = lent_k,
       .v = lent_v,
       .out = lent_out,
       .lse = testing::View(lse, {1, 1, T})});
  return lse;
}

TEST(BackendsTest, TheCpuHasTheKernelsThatTheMachineIsBestAt) {
  const std::vector<float> chosen = LseOfAttention(*MakeDevice("cpu").value()),
                           of_avx2 = LseOfAttention(*avx2::MakeCpuDevice(/*threads=*/0));
  if (!HasAvx512Bf16()) {
    EXPECT_EQ(chosen, of_avx2);
    return;
  }
  EXPECT_EQ(chosen, LseOfAttention(*avx512::MakeCpuDevice(/*threads=*/0)));
  EXPECT_NE(chosen, of_avx2);
}

TEST(BackendsTest, AnUnknownDeviceIsRefused) {
  EXPECT_EQ(MakeDevice("abacus").status().code(), absl::StatusCode::kInvalidArgument);
}

// Without a driver this still loads the module, where it is built: all that it takes from the
// program and from CUDA's libraries is there.
TEST(BackendsTest, CudaIsAvailableOrSaysInOneSentenceWhatIsMissing) {
  const absl::StatusOr<std::unique_ptr<Device>> device = MakeDevice("cuda");
  if (device.ok()) {
    EXPECT_TRUE(UsableCard(/*local_rank=*/0).ok());
    return;
  }
  EXPECT_FALSE(UsableCard(/*local_rank=*/0).ok());
  const bool has_driver = dlopen("libcuda.so.1", RTLD_LAZY) != nullptr;
  EXPECT_EQ(absl::IsNotFound(UsableCard(/*local_rank=*/0)), !has_driver)
      << "AUTO would warn where no card is meant";
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
  const std::string message(device.status().message());
  EXPECT_THAT(message, AllOf(StartsWith("train.device = CUDA needs "),
                             EndsWith(", or take the CPU with --override='train { device: CPU }'"),
                             Not(HasSubstr("\n"))));
  EXPECT_THAT(message, Not(HasSubstr("fits this program")));  // the module is this build's
}

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Device>> device = MakeDevice("cuda");
    if (device.ok()) {
      device_ = *std::move(device);
      return;
    }
    std::printf("SKIPPED: %s\n", std::string(device.status().message()).c_str());
    GTEST_SKIP() << device.status().message();
  }

  std::unique_ptr<Device> device_;
};

TEST_F(CudaDeviceTest, MemoryIsTheCardsAndZeroAtBirth) {
  constexpr int64_t kElements = 1 << 20;
  EXPECT_GT(device_->FreeBytes(), 0);
  for (int i = 0; i < 2; ++i) {  // perhaps the same memory again
    const Storage storage(*device_, kElements * 4);
    const Tensor tensor(storage.data(), DType::kF32, {kElements});
    std::vector<float> host(kElements, 1);
    device_->CopyOut(host.data(), tensor);
    EXPECT_EQ(std::count(host.begin(), host.end(), 0.0F), kElements);
    std::fill(host.begin(), host.end(), 1.0F);
    device_->CopyIn(tensor, host.data());
  }
}

TEST_F(CudaDeviceTest, CopiesAreOrderedAndLetGoOfHostMemory) {
  constexpr int64_t kElements = 1 << 20;
  const Storage storage(*device_, 2 * kElements * 4);
  const Tensor both(storage.data(), DType::kI32, {2, kElements});
  std::vector<int32_t> sent(kElements, 7), received(kElements);
  device_->CopyIn(both.At(0), sent.data());
  std::fill(sent.begin(), sent.end(), 8);
  device_->Copy(both.At(1), both.At(0));
  device_->CopyIn(both.At(0), sent.data());
  device_->CopyOut(received.data(), both.At(1));
  EXPECT_EQ(std::count(received.begin(), received.end(), 7), kElements);
  device_->CopyOut(received.data(), both.At(0));
  EXPECT_EQ(std::count(received.begin(), received.end(), 8), kElements);
}

// A group of one, which every machine with NCCL allows: what it calls, in which order, and that it
// ends.
TEST_F(CudaDeviceTest, ItsNetworksOperationsRunInOrderWithItsOwn) {
  constexpr int64_t kElements = 1 << 20;
  DeviceNetwork& network = *device_->network();
  const Storage storage(*device_, 2 * kElements * 4);
  const Tensor both(storage.data(), DType::kF32, {2, kElements});
  const Tensor own = both.At(0), other = both.At(1);
  std::vector<float> host(kElements, 1.5F);
  device_->CopyIn(own, host.data());
  const std::unique_ptr<DeviceCollectives> group = network.Join({.id = network.NewId(),
                                                                 .rank = 0,
                                                                 .size = 1,
                                                                 .work = GroupWork::kRoundedSums,
                                                                 .name = "alone"});
  const std::vector<int64_t> counts = {kElements};
  group->AllReduce(own, Reduction::kSum);
  group->AllGather(own, counts);
  group->ReduceScatter(own, counts);
  group->ReduceScatterAsBFloat16(own, counts);
  group->Broadcast(own, 0);
  const DeviceMessage sent = {.data = own.data(), .bytes = own.bytes(), .peer = 0};
  const DeviceMessage received = {.data = other.data(), .bytes = other.bytes(), .peer = 0};
  const DeviceCollectives::Number first = group->Exchange({&sent, 1}, {&received, 1});
  for (int i = 0; i < 300; ++i) group->Exchange({&sent, 1}, {&received, 1});
  group->Await(first);  // has long ended: a schedule may send so many before it waits
  group->Await(first + 300);
  device_->ops().Scale(other, 2);
  device_->CopyOut(host.data(), other);
  EXPECT_EQ(std::count(host.begin(), host.end(), 3.0F), kElements);

  const std::unique_ptr<Device> beside = network.Beside();
  device_->ops().Scale(other, 2);
  beside->network()->Await(network, network.Mark());
  beside->ops().Scale(other, 2);
  network.Await(*beside->network(), beside->network()->Mark());
  device_->CopyOut(host.data(), other);
  EXPECT_EQ(std::count(host.begin(), host.end(), 12.0F), kElements);
}

}  // namespace
}  // namespace twinstream
