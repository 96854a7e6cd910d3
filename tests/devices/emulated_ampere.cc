// The CUDA backend on emulated cards of before Hopper, for operations whose kernels differ there.
#include <memory>

#include "core/cuda/device.h"
#include "core/cuda/emulated/runtime.h"
#include "tests/devices/uploaded_ops.h"
#include "tests/testing/tested_ops.h"

namespace twinstream::testing {

const Ops& TestedOps() {
  static const std::unique_ptr<CudaDevice> device = [] {
    gpu::SetEmulatedHost({.capability_major = 8, .capability_minor = 0});
    return std::make_unique<CudaDevice>(/*card=*/0);
  }();
  static const UploadedOps ops(*device);
  return ops;
}

}  // namespace twinstream::testing
