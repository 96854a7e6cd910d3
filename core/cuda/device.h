// CudaDevice: one card's memory and operations, on one stream.
#pragma once

#include <atomic>
#include <string>

#include "core/cuda/ops.h"
#include "core/cuda/stream.h"
#include "core/device.h"
#include "core/device_collectives.h"

namespace twinstream {

// What CUDA says of a card, by its number.
int AttributeOf(int card, cudaDeviceAttr attribute);

// The thread that makes it issues its operations; memory and copies are for any thread, but not
// while that one records.
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int card);  // by CUDA's number; becomes the thread's current one

  int card() const { return card_; }
  cudaStream_t stream() const { return stream_.get(); }

  absl::string_view name() const override { return name_; }
  std::byte* Allocate(int64_t bytes) override;
  void Free(std::byte* data, int64_t bytes) override;
  int64_t FreeBytes() const override;
  std::byte* AllocateHost(int64_t bytes) override;
  void FreeHost(std::byte* data, int64_t bytes) override;
  void Copy(Tensor to, Tensor from) override;
  void CopyIn(Tensor to, const void* host) override;
  void CopyOut(void* host, Tensor from) override;
  void Synchronize() override;
  // As a graph of CUDA's. Null where a capture cannot begin or no graph be made of it; dies where a
  // call of `issue` breaks the capture.
  std::unique_ptr<RecordedWork> Record(absl::FunctionRef<void()> issue) override;
  const Ops& ops() const override { return ops_; }
  bool host_memory() const override { return false; }
  DeviceNetwork* network() override { return network_.get(); }

 private:
  void CheckNotRecording(const char* what) const;
  Workspace workspace() const { return {workspace_.data(), workspace_.bytes()}; }

  int card_;
  std::atomic<bool> recording_ = false;
  CudaStream stream_;
  Storage workspace_;
  CudaOps ops_;
  std::string name_;
  std::unique_ptr<DeviceNetwork> network_;
};

}  // namespace twinstream
