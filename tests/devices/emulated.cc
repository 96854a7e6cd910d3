// The CUDA backend on the emulated cards (core/cuda/emulated). Ranks share the one that there is,
// unless a test sets another host.
#include <memory>

#include "core/cuda/factory.h"
#include "tests/devices/uploaded_ops.h"
#include "tests/testing/tested_device.h"
#include "tests/testing/tested_ops.h"

namespace twinstream::testing {

const Ops& TestedOps() {
  static const std::unique_ptr<Device> device = TwinstreamCudaBackend()->MakeDevice(0).value();
  static const UploadedOps ops(*device);
  return ops;
}

DeviceMaker TestedDevices() {
  return [](int rank) {
    const CudaBackend& backend = *TwinstreamCudaBackend();
    return backend.MakeDevice(backend.CardOf(rank).value()).value();
  };
}

}  // namespace twinstream::testing
