#include "core/cuda/factory.h"

#include <cuda_runtime.h>

#include "absl/strings/str_format.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"

namespace twinstream {
namespace {

constexpr int kOldestCapability = 8;  // major: Ampere, the oldest that the kernels are compiled for

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
  absl::StatusOr<int> CardOf(int local_rank) const override {
    const absl::StatusOr<int> cards = CountCards();
    if (!cards.ok()) return cards;
    const int card = local_rank % *cards;
    int major = 0, minor = 0;
    Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, card),
          "cudaDeviceGetAttribute");
    Check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, card),
          "cudaDeviceGetAttribute");
    if (major < kOldestCapability) {
      return CudaNeeds(
          absl::StrFormat("a card of compute capability %d.0 or newer, and card %d has %d.%d",
                          kOldestCapability, card, major, minor),
          "hide that one with CUDA_VISIBLE_DEVICES");
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
