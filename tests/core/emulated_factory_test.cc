// What the CUDA backend asks of a host and its cards, on emulated ones.
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/emulated/runtime.h"
#include "core/cuda/factory.h"
#include "gtest/gtest.h"

namespace twinstream::testing {
namespace {

using ::testing::ExitedWithCode;

// Why CardOf refuses the host.
std::string RefusalOf(const gpu::EmulatedHost& host, int local_rank = 0) {
  gpu::SetEmulatedHost(host);
  const absl::StatusOr<int> card = TwinstreamCudaBackend()->CardOf(local_rank);
  EXPECT_EQ(card.status().code(), absl::StatusCode::kFailedPrecondition);
  return std::string(card.status().message());
}

// ---- What is missing, in one sentence with the remedy.

TEST(CudaBackendTest, AHostWithoutADriverIsTold) {
  EXPECT_EQ(RefusalOf({.driver_version = 0}),
            "train.device = CUDA needs NVIDIA's driver, which this host lacks: install it, "
            "or take the CPU with --override='train { device: CPU }'");
}

TEST(CudaBackendTest, ADriverThatIsTooOldIsNamedByItsVersion) {
  EXPECT_EQ(RefusalOf({.driver_version = 12080}),
            "train.device = CUDA needs an NVIDIA driver for CUDA 13.0, and this host's is for CUDA "
            "12.8: update it, or take the CPU with --override='train { device: CPU }'");
}

TEST(CudaBackendTest, AHostWithoutACardIsTold) {
  const std::string told =
      "train.device = CUDA needs an NVIDIA card, and this host shows none: see whether nvidia-smi "
      "lists one that CUDA_VISIBLE_DEVICES hides, or take the CPU with --override='train { device: "
      "CPU }'";
  EXPECT_EQ(RefusalOf({.count_error = cudaErrorNoDevice}), told);
  EXPECT_EQ(RefusalOf({.cards = 0}), told);
}

TEST(CudaBackendTest, ADriverThatDoesNotWorkIsQuoted) {
  EXPECT_EQ(RefusalOf({.count_error = cudaErrorSystemNotReady}),
            "train.device = CUDA needs a working NVIDIA driver, and this host's says \"system not "
            "yet initialized\": see what nvidia-smi and the kernel's log say, "
            "or take the CPU with --override='train { device: CPU }'");
}

TEST(CudaBackendTest, ACardThatIsTooOldIsNamed) {
  EXPECT_EQ(RefusalOf({.cards = 2, .capability_major = 7, .capability_minor = 5},
                      /*local_rank=*/3),
            "train.device = CUDA needs a card of compute capability 8.0 or newer, and card 1 has "
            "7.5: hide that one with CUDA_VISIBLE_DEVICES, or take the CPU with --override='train "
            "{ device: CPU }'");
}

TEST(CudaBackendTest, ACardWithTooLittleSharedMemoryIsNamed) {
  for (const int minor : {6, 9}) {
    const std::string capability = "8." + std::to_string(minor);
    EXPECT_EQ(
        RefusalOf(
            {.cards = 4, .capability_major = 8, .capability_minor = minor, .shared_bytes = 101376},
            /*local_rank=*/2),
        "train.device = CUDA needs a card whose blocks can have 147456 bytes of shared memory, and "
        "those of card 2 (compute capability " +
            capability +
            ") can have 101376: hide that one with CUDA_VISIBLE_DEVICES, "
            "or take the CPU with --override='train { device: CPU }'");
  }
}

TEST(CudaBackendTest, ACardThatCannotBeTakenIsNamed) {
  gpu::SetEmulatedHost({.cards = 2});
  const absl::Status status = TwinstreamCudaBackend()->MakeDevice(2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "train.device = CUDA needs card 2, which refuses (invalid device ordinal): see with "
            "nvidia-smi who uses it, or take the CPU with --override='train { device: CPU }'");
}

// ---- What is enough.

TEST(CudaBackendTest, TheOldestCardThatKernelsAreCompiledForIsTaken) {
  gpu::SetEmulatedHost({.capability_major = 8, .capability_minor = 0});
  EXPECT_EQ(TwinstreamCudaBackend()->CardOf(0).value(), 0);
}

TEST(CudaBackendTest, ADeviceIsOnItsCard) {
  gpu::SetEmulatedHost({.cards = 2});
  const std::unique_ptr<Device> device = TwinstreamCudaBackend()->MakeDevice(1).value();
  EXPECT_EQ(device->name(), "cuda");
  EXPECT_EQ(dynamic_cast<const CudaDevice&>(*device).card(), 1);
  EXPECT_TRUE(gpu::IsInUse(1));
}

TEST(CudaBackendTest, OnlyCardsOfCapabilityNineHaveProductsOfWarpgroups) {
  for (const auto& [major, minor] : {std::pair{8, 0}, {9, 0}, {9, 1}, {10, 0}, {12, 0}}) {
    gpu::SetEmulatedHost({.capability_major = major, .capability_minor = minor});
    const CudaDevice device(/*card=*/0);
    EXPECT_EQ(dynamic_cast<const CudaOps&>(device.ops()).card().warpgroup_products,
              major == 9 && minor == 0)
        << major << "." << minor;
  }
}

// A program of its own: what has been set or used by one stays so.
class CudaBackendDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// A card in use has less memory, and a job that only asks whether there is one uses none.
TEST_F(CudaBackendDeathTest, RanksTakeTheCardsInTurnAndStartNothingOnThem) {
  const auto ask = [] {
    gpu::SetEmulatedHost({.cards = 3});
    std::vector<int> cards;
    for (int rank = 0; rank < 7; ++rank) {
      cards.push_back(TwinstreamCudaBackend()->CardOf(rank).value());
    }
    if (cards != std::vector<int>{0, 1, 2, 0, 1, 2, 0}) Die("the ranks have other cards");
    for (const int card : {0, 1, 2}) Check(!gpu::IsInUse(card), "card %d is in use", card);
    std::exit(0);
  };
  EXPECT_EXIT(ask(), ExitedWithCode(0), "");
}

// ---- The environment.

constexpr const char* kVariables[] = {"CUDA_MODULE_LOADING",
                                      "CUDA_DEVICE_MAX_CONNECTIONS",
                                      "NCCL_RUNTIME_CONNECT",
                                      "NCCL_GRAPH_REGISTER",
                                      "CUDNN_FRONTEND_CUDART_LIB_NAME",
                                      "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT"};

// What the backend makes of an environment in which a person has set so many of them to "own".
void PrintEnvironment(size_t set) {
  for (size_t i = 0; i < std::size(kVariables); ++i) {
    if (i < set) {
      setenv(kVariables[i], "own", /*overwrite=*/1);
    } else {
      unsetenv(kVariables[i]);
    }
  }
  TwinstreamCudaBackend();
  for (const char* variable : kVariables) {
    std::fprintf(stderr, "%s=%s\n", variable, std::getenv(variable));
  }
  std::exit(0);
}

TEST_F(CudaBackendDeathTest, LibrariesReadTheBackendsEnvironment) {
  EXPECT_EXIT(PrintEnvironment(0), ExitedWithCode(0),
              "CUDA_MODULE_LOADING=EAGER\nCUDA_DEVICE_MAX_CONNECTIONS=32\n"
              "NCCL_RUNTIME_CONNECT=0\nNCCL_GRAPH_REGISTER=0\n"
              "CUDNN_FRONTEND_CUDART_LIB_NAME=libcudart.so.13\n"
              "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT=0\n");
}

TEST_F(CudaBackendDeathTest, WhatAPersonHasSetInTheEnvironmentStays) {
  EXPECT_EXIT(PrintEnvironment(2), ExitedWithCode(0),
              "CUDA_MODULE_LOADING=own\nCUDA_DEVICE_MAX_CONNECTIONS=own\nNCCL_RUNTIME_CONNECT=0\n");
  EXPECT_EXIT(
      PrintEnvironment(std::size(kVariables)), ExitedWithCode(0),
      "NCCL_RUNTIME_CONNECT=own\nNCCL_GRAPH_REGISTER=own\nCUDNN_FRONTEND_CUDART_LIB_NAME=own\n"
      "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT=own\n");
}

}  // namespace
}  // namespace twinstream::testing
