#include "core/device.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/counted_device.h"
#include "tests/testing/tested_device.h"

namespace twinstream::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;

TEST(HostArrayTest, IsAlignedAndZeroAtBirthAndReachesTheDeviceAndBack) {
  constexpr int64_t kSize = 10'007;
  const std::unique_ptr<Device> device = TestedDevices()(0);
  for (int i = 0; i < 2; ++i) {  // perhaps the same memory again
    HostArray<int32_t> sent(*device, kSize), received(*device, kSize);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(sent.data()) % alignof(std::max_align_t), 0);
    ASSERT_EQ(sent.size(), kSize);
    EXPECT_THAT(absl::MakeConstSpan(sent), Each(0));
    EXPECT_THAT(absl::MakeConstSpan(received), Each(0));
    std::iota(sent.begin(), sent.end(), 1);
    const std::vector<int32_t> expected(sent.begin(), sent.end());
    const Storage storage(*device, 4 * kSize);
    const Tensor tensor(storage.data(), DType::kI32, {kSize});
    device->CopyIn(tensor, sent.data());
    std::fill(sent.begin(), sent.end(), -1);
    device->CopyOut(received.data(), tensor);
    EXPECT_THAT(absl::MakeConstSpan(received), ElementsAreArray(expected));
  }
}

TEST(HostArrayTest, IsGivenBackOnceByItsLastOwner) {
  CountedDevice device(TestedDevices()(0));
  {
    HostArray<double> first(device, 3);
    EXPECT_EQ(device.counts().host_held, 24);
    const double* const data = first.data();
    HostArray<double> second = std::move(first);
    EXPECT_EQ(second.data(), data);
    HostArray<double> third;
    third = std::move(second);
    EXPECT_EQ(third.data(), data);
    EXPECT_EQ(third.size(), 3);
    third = HostArray<double>(device, 5);
    EXPECT_EQ(device.counts().host_held, 40);
    const HostArray<double> none(device, 0);
    EXPECT_EQ(none.begin(), none.end());
  }
  EXPECT_EQ(device.counts().host_held, 0);
  EXPECT_EQ(device.counts().host_allocated, 64);
}

}  // namespace
}  // namespace twinstream::testing
