#include "core/cpu/device.h"

#include <omp.h>
#include <sys/mman.h>

#include <cstring>

#include "core/cpu/ops.h"
#include "core/op_checks.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

class CpuDevice final : public Device {
 public:
  absl::string_view name() const override { return "cpu"; }

  // Fresh pages are zero. Large areas ask for huge pages: fewer TLB misses in the streaming
  // kernels.
  std::byte* Allocate(int64_t bytes) override {
    void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Check(data != MAP_FAILED,
          "the host has no %d bytes of memory left: use more ranks, a smaller train.microbatch or "
          "a smaller model",
          bytes);
    madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a hint; refusal is harmless
    return static_cast<std::byte*>(data);
  }

  void Free(std::byte* data, int64_t bytes) override { munmap(data, static_cast<size_t>(bytes)); }
  int64_t FreeBytes() const override { return 0; }
  std::byte* AllocateHost(int64_t bytes) override { return Allocate(bytes); }
  void FreeHost(std::byte* data, int64_t bytes) override { Free(data, bytes); }

  void Copy(Tensor to, Tensor from) override {
    CheckCopy(to, from);
    CopyBytes(to.data(), from.data(), from.bytes());
  }

  void CopyIn(Tensor to, const void* host) override { CopyBytes(to.data(), host, to.bytes()); }
  void CopyOut(void* host, Tensor from) override { CopyBytes(host, from.data(), from.bytes()); }
  void Synchronize() override {}
  std::unique_ptr<RecordedWork> Record(absl::FunctionRef<void()> /*issue*/) override {
    return nullptr;
  }
  const Ops& ops() const override { return ops_; }
  bool host_memory() const override { return true; }
  DeviceNetwork* network() override { return nullptr; }

 private:
  // Nothing to copy may come as a null pointer, which memmove does not take.
  static void CopyBytes(void* to, const void* from, int64_t bytes) {
    if (bytes > 0 && to != from) std::memmove(to, from, static_cast<size_t>(bytes));
  }

  CpuOps ops_;
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice(int threads) {
  if (threads > 0) omp_set_num_threads(threads);
  return std::make_unique<CpuDevice>();
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
