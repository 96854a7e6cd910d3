#include "core/cuda/factory.h"

#include <cuda_runtime.h>

#include <cstdlib>

#include "absl/strings/str_format.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/workspace.h"

namespace twinstream {
namespace {

constexpr int kOldestCapability = 8;  // major: Ampere, the oldest that the kernels are compiled for

struct Variable {
  const char *name, *value;
};

// What CUDA and NCCL read once, when they start, and cuDNN's frontend later. A person's own values
// stay.
constexpr Variable kEnvironment[] = {
    // A kernel that is loaded at its first launch may wait until the whole card is idle, and a
    // receive that is under way on it until another rank launches that kernel: for ever. Of those
    // that cuBLASLt loads itself docs/schedules.md tells.
    {"CUDA_MODULE_LOADING", "EAGER"},
    // Streams that share one of the card's queues wait for each other's work. Each group of ranks
    // has a stream, and by default there are 8 queues.
    {"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
    // By default NCCL connects a group for an algorithm at its first use, which is in a step.
    {"NCCL_RUNTIME_CONNECT", "0"},
    // By default NCCL works in the tensors of recorded operations themselves where it can: for that
    // it may choose other algorithms, with other sums, than for those that are issued.
    {"NCCL_GRAPH_REGISTER", "0"},
    // cuDNN's frontend loads CUDA's runtime, by default of CUDA 12 where there is one.
    {"CUDNN_FRONTEND_CUDART_LIB_NAME", "libcudart.so.13"},
    // Attention's deterministic backward on Hopper: its sums in order (cuDNN 9.25 and newer), not
    // through T x T scores in memory, which we do not take.
    {"CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", "0"},
};

absl::Status HideCard(absl::string_view missing) {
  return CudaNeeds(missing, "hide that one with CUDA_VISIBLE_DEVICES");
}

// CUDA writes 13.2 as 13020.
std::string VersionText(int version) {
  return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10);
}

absl::Status DriverNeeded() {
  int has = 0, needs = 0;  // `has` stays 0 without a driver
  Check(cudaDriverGetVersion(&has), "cudaDriverGetVersion");
  Check(cudaRuntimeGetVersion(&needs), "cudaRuntimeGetVersion");
  if (has == 0) return CudaNeeds("NVIDIA's driver, which this host lacks", "install it");
  return CudaNeeds(absl::StrFormat("an NVIDIA driver for CUDA %s, and this host's is for CUDA %s",
                                   VersionText(needs), VersionText(has)),
                   "update it");
}

absl::StatusOr<int> CountCards() {
  int cards = 0;
  const cudaError_t error = cudaGetDeviceCount(&cards);
  if (error == cudaErrorInsufficientDriver) return DriverNeeded();
  if (error == cudaErrorNoDevice || (error == cudaSuccess && cards == 0)) {
    return CudaNeeds("an NVIDIA card, and this host shows none",
                     "see whether nvidia-smi lists one that CUDA_VISIBLE_DEVICES hides");
  }
  if (error != cudaSuccess) {
    return CudaNeeds(absl::StrFormat("a working NVIDIA driver, and this host's says \"%s\"",
                                     cudaGetErrorString(error)),
                     "see what nvidia-smi and the kernel's log say");
  }
  return cards;
}

class ModuleBackend final : public CudaBackend {
 public:
  // Before any call of CUDA's. A program makes its device before its threads that compute.
  ModuleBackend() {
    for (const Variable& variable : kEnvironment) setenv(variable.name, variable.value, 0);
  }

  absl::StatusOr<int> CardOf(int local_rank) const override {
    const absl::StatusOr<int> cards = CountCards();
    if (!cards.ok()) return cards;
    const int card = local_rank % *cards;
    const int major = AttributeOf(card, cudaDevAttrComputeCapabilityMajor);
    const int minor = AttributeOf(card, cudaDevAttrComputeCapabilityMinor);
    if (major < kOldestCapability) {
      return HideCard(
          absl::StrFormat("a card of compute capability %d.0 or newer, and card %d has %d.%d",
                          kOldestCapability, card, major, minor));
    }
    // Cards of capability 8.6, 8.9 and 12 have 101376, too few for bf16 models with a head_dim of
    // 128: there is no rule for the few jobs that they could run.
    const int shared_bytes = AttributeOf(card, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    if (shared_bytes < kSharedBytesOfABlock) {
      return HideCard(absl::StrFormat(
          "a card whose blocks can have %d bytes of shared memory, and those of card %d (compute "
          "capability %d.%d) can have %d",
          kSharedBytesOfABlock, card, major, minor, shared_bytes));
    }
    return card;
  }

  absl::StatusOr<std::unique_ptr<Device>> MakeDevice(int card) const override {
    if (const cudaError_t error = cudaSetDevice(card); error != cudaSuccess) {
      return CudaNeeds(
          absl::StrFormat("card %d, which refuses (%s)", card, cudaGetErrorString(error)),
          "see with nvidia-smi who uses it");
    }
    return std::make_unique<CudaDevice>(card);
  }
};

}  // namespace

extern "C" const CudaBackend* TwinstreamCudaBackend() {
  static const ModuleBackend backend;
  return &backend;
}

}  // namespace twinstream
