#include "core/cuda/device.h"

#include "absl/strings/str_cat.h"
#include "core/cuda/check.h"
#include "core/cuda/collectives.h"
#include "core/op_checks.h"

namespace twinstream {
namespace {

struct CardMemory {
  size_t free = 0, total = 0;  // bytes
};

CardMemory MemoryOf(int card) {
  Check(cudaSetDevice(card), "cudaSetDevice");
  CardMemory memory;
  Check(cudaMemGetInfo(&memory.free, &memory.total), "cudaMemGetInfo");
  return memory;
}

int MultiprocessorsOf(int card) {
  int count = 0;
  Check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, card),
        "cudaDeviceGetAttribute");
  return count;
}

std::string NameOf(const FusedAttention* fused) {
  return fused == nullptr ? "cuda" : absl::StrCat("cuda, attention by ", fused->name());
}

void CopyBytes(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0 || to == from) return;
  Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
        "cudaMemcpyAsync");
}

}  // namespace

CudaDevice::CudaDevice(int card)
    : card_(card),
      stream_(card, CudaStream::Priority::kUsual),
      workspace_(*this, kWorkspaceBytes),
      ops_(stream(), MultiprocessorsOf(card), workspace(),
           MakeFusedAttention(stream(), workspace())),
      name_(NameOf(ops_.fused())),
      network_(MakeCudaNetwork(*this)) {}

std::byte* CudaDevice::Allocate(int64_t bytes) {
  Check(cudaSetDevice(card_), "cudaSetDevice");
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    const auto [free, total] = MemoryOf(card_);
    Die(
        absl::StrFormat("card %d has no %d bytes of memory left (%d of its %d bytes are free): use "
                        "more ranks, parallel.recompute, a smaller train.microbatch or a smaller "
                        "model",
                        card_, bytes, free, total));
  }
  Check(error, "cudaMalloc");
  gpu::Clear(static_cast<std::byte*>(data), bytes, stream());
  return static_cast<std::byte*>(data);
}

void CudaDevice::Free(std::byte* data, int64_t /*bytes*/) {
  Check(cudaSetDevice(card_), "cudaSetDevice");
  Synchronize();  // the stream's work may still use it
  Check(cudaFree(data), "cudaFree");
}

int64_t CudaDevice::FreeBytes() const { return static_cast<int64_t>(MemoryOf(card_).free); }

void CudaDevice::Copy(Tensor to, Tensor from) {
  CheckCopy(to, from);
  CopyBytes(to.data(), from.data(), from.bytes(), stream());
}

void CudaDevice::CopyIn(Tensor to, const void* host) {
  CopyBytes(to.data(), host, to.bytes(), stream());
  Synchronize();
}

void CudaDevice::CopyOut(void* host, Tensor from) {
  CopyBytes(host, from.data(), from.bytes(), stream());
  Synchronize();
}

void CudaDevice::Synchronize() { stream_.Synchronize(); }

}  // namespace twinstream
