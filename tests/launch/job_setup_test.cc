#include "launch/job_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "core/device.h"
#include "parallel/process_grid.h"
#include "tests/testing/rank_devices.h"
#include "tests/testing/run_ranks.h"

namespace twinstream::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

// Of three ranks that plan for 2, 3 and 4 GiB, the first and the last share a card.
absl::Status CheckSharedCard(int64_t free_bytes) {
  absl::Status of_first;
  ThreadNetworkHub hub;
  RunRanks(3, [&](Transport& transport) {
    const int rank = transport.rank();
    const ProcessGrid grid({.data = 3}, transport);
    const std::unique_ptr<Device> device = MakeRemoteDevice(
        MakeDevice("cpu").value(), &hub, rank == 1 ? "lonely" : "shared", free_bytes);
    const absl::Status status =
        CheckMemory(grid.world(), "here", *device, {.weights = (2 + rank) * kGiB});
    if (rank == 0) of_first = status;
  });
  return of_first;
}

TEST(CheckMemory, RanksThatShareACardMustFitTogetherAndLeaveAGiB) {
  EXPECT_TRUE(CheckSharedCard(7 * kGiB).ok());
  const absl::Status status = CheckSharedCard(7 * kGiB - 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("card shared on host here has 6.0 GiB left, besides 1.0 GiB for"),
                    HasSubstr("its ranks (0, 2) plan for is 6.0 GiB together"),
                    HasSubstr("Use fewer ranks per card")));
}

TEST(CheckMemory, ACardWithNothingLeftIsNamedByARankOfItsOwn) {
  RunRanks(1, [](Transport& transport) {
    const ProcessGrid grid({}, transport);
    const std::unique_ptr<Device> device =
        MakeRemoteDevice(MakeDevice("cpu").value(), nullptr, "", kGiB);
    EXPECT_TRUE(CheckMemory(grid.world(), "here", *device, {}).ok());
    EXPECT_THAT(std::string(CheckMemory(grid.world(), "here", *device, {.weights = 1}).message()),
                HasSubstr("card of-rank-0 on host here has 0.0 GiB left"));
  });
}

}  // namespace
}  // namespace twinstream::testing
