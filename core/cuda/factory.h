// What the module twinstream_cuda.so gives the program that loads it (core/backends.cc). The
// module holds no code of the rest of core: it takes the program's own, failure handler included.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/device.h"

namespace twinstream {

// Its errors are CudaNeeds'.
class CudaBackend {
 public:
  virtual ~CudaBackend() = default;
  // The card for a rank of this host, by CUDA's number. Nothing is started on it.
  virtual absl::StatusOr<int> CardOf(int local_rank) const = 0;
  virtual absl::StatusOr<std::unique_ptr<Device>> MakeDevice(int card) const = 0;
};

// The one sentence for a job that asks for CUDA where something is missing.
inline absl::Status CudaNeeds(absl::string_view missing, absl::string_view remedy) {
  return absl::FailedPreconditionError(
      absl::StrCat("train.device = CUDA needs ", missing, ": ", remedy,
                   ", or take the CPU with --override='train { device: CPU }'"));
}

// The module's one entry. The backend lives as long as the program.
constexpr char kCudaModule[] = "twinstream_cuda.so";
constexpr char kCudaEntry[] = "TwinstreamCudaBackend";
extern "C" const CudaBackend* TwinstreamCudaBackend();

}  // namespace twinstream
