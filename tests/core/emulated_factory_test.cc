// The factory of the CUDA backend on emulated hosts: which card a rank gets, and what it says of a
// host or a card that will not do.
#include <cstdlib>
#include <string>

#include "core/cuda/emulated/runtime.h"
#include "core/cuda/factory.h"
#include "gtest/gtest.h"

namespace twinstream::testing {
namespace {

absl::StatusOr<int> CardOn(const gpu::EmulatedHost& host, int local_rank = 0) {
  gpu::SetEmulatedHost(host);
  return TwinstreamCudaBackend()->CardOf(local_rank);
}

absl::Status Needs(const char* text) {
  return absl::FailedPreconditionError(
      absl::StrCat("train.device = CUDA needs ", text, ", or set train.device to CPU"));
}

TEST(CudaFactory, RanksOfAHostTakeItsCardsInTurn) {
  for (int rank = 0; rank < 7; ++rank) EXPECT_EQ(*CardOn({.cards = 3}, rank), rank % 3);
}

TEST(CudaFactory, StartsNothingOnTheCardsThatItLooksAt) {
  gpu::SetEmulatedHost({.cards = 64});
  EXPECT_TRUE(TwinstreamCudaBackend()->CardOf(63).ok());
  EXPECT_FALSE(gpu::IsInUse(63));
}

TEST(CudaFactory, AHostWithoutADriverOrWithAnOldOneIsTold) {
  gpu::EmulatedHost host = {.driver_version = 0, .count_error = cudaErrorInsufficientDriver};
  EXPECT_EQ(CardOn(host).status(), Needs("NVIDIA's driver, which this host lacks: install it"));
  host.driver_version = 12080;
  EXPECT_EQ(CardOn(host).status(),
            Needs("an NVIDIA driver for CUDA 13.0, and this host's is for CUDA 12.8: update it"));
}

TEST(CudaFactory, AHostWithoutACardIsTold) {
  const absl::Status none = Needs(
      "an NVIDIA card, and this host shows none: see whether nvidia-smi lists one that "
      "CUDA_VISIBLE_DEVICES hides");
  EXPECT_EQ(CardOn({.cards = 0}).status(), none);
  EXPECT_EQ(CardOn({.count_error = cudaErrorNoDevice}).status(), none);
  EXPECT_EQ(CardOn({.count_error = cudaErrorLaunchFailure}).status(),
            Needs("a working NVIDIA driver, and this host's says \"unspecified launch failure\": "
                  "see what nvidia-smi and the kernel's log say"));
}

TEST(CudaFactory, ACardThatWillNotDoIsNamed) {
  EXPECT_TRUE(CardOn({.capability_major = 8, .capability_minor = 0}).ok());
  EXPECT_EQ(CardOn({.cards = 2, .capability_major = 7, .capability_minor = 5}, 1).status(),
            Needs("a card of compute capability 8.0 or newer, and card 1 has 7.5: hide that one "
                  "with CUDA_VISIBLE_DEVICES"));
  EXPECT_EQ(CardOn({.capability_minor = 6, .shared_bytes = 101376}).status(),
            Needs("a card whose blocks can have 147456 bytes of shared memory, and those of card "
                  "0 (compute capability 9.6) can have 101376: hide that one with "
                  "CUDA_VISIBLE_DEVICES"));
}

TEST(CudaFactory, ACardThatRefusesIsNamed) {
  gpu::SetEmulatedHost({.cards = 1});
  EXPECT_EQ(TwinstreamCudaBackend()->MakeDevice(1).status(),
            Needs("card 1, which refuses (invalid device ordinal): see with nvidia-smi who uses "
                  "it"));
}

// In a process of its own: the backend looks once.
TEST(CudaFactoryDeathTest, APersonsOwnEnvironmentStays) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto start = [] {
    setenv("CUDA_MODULE_LOADING", "LAZY", /*overwrite=*/1);
    unsetenv("NCCL_RUNTIME_CONNECT");
    TwinstreamCudaBackend();
    const bool is_kept = std::string(getenv("CUDA_MODULE_LOADING")) == "LAZY";
    const bool is_set = std::string(getenv("NCCL_RUNTIME_CONNECT")) == "0";
    std::exit(is_kept && is_set ? 0 : 2);
  };
  EXPECT_EXIT(start(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace twinstream::testing
