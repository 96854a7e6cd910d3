#include "core/cuda/emulated/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/cuda/ops.h"
#include "core/op_checks.h"

namespace twinstream {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kAlignment = 16;  // less than Device promises: the guard page is nearer
constexpr std::byte kCanary{0xA5};

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

bool IsCanary(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte b) { return b == kCanary; });
}

// An allocation ends, but for the rounding to kAlignment, where its guard page begins.
class EmulatedDevice final : public Device {
 public:
  EmulatedDevice()
      : workspace_{Allocate(kWorkspaceBytes), kWorkspaceBytes},
        ops_(gpu::Stream(), /*multiprocessors=*/2, workspace_, /*fused=*/nullptr) {}
  ~EmulatedDevice() override { Free(workspace_.data, workspace_.bytes); }

  absl::string_view name() const override { return "emulated"; }

  std::byte* Allocate(int64_t bytes) override {
    const int64_t pages = RoundUp(bytes, kPage);
    void* mapping = mmap(nullptr, static_cast<size_t>(pages + kPage), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    Check(mapping != MAP_FAILED, "the host has no %d bytes of memory left", bytes);
    std::byte* const first = static_cast<std::byte*>(mapping);
    std::byte* const guard = first + pages;
    Check(mprotect(guard, kPage, PROT_NONE) == 0, "mprotect failed");
    std::byte* const data = guard - RoundUp(bytes, kAlignment);
    std::fill(first, data, kCanary);
    std::fill(data + bytes, guard, kCanary);
    return data;
  }

  void Free(std::byte* data, int64_t bytes) override {
    std::byte* const guard = data + RoundUp(bytes, kAlignment);
    const int64_t pages = RoundUp(bytes, kPage);
    Check(IsCanary(guard - pages, data), "a kernel wrote in front of %d bytes", bytes);
    Check(IsCanary(data + bytes, guard), "a kernel wrote behind the end of %d bytes", bytes);
    munmap(guard - pages, static_cast<size_t>(pages + kPage));
  }

  int64_t FreeBytes() const override { return 0; }

  void Copy(Tensor to, Tensor from) override {
    CheckCopy(to, from);
    CopyBytes(to.data(), from.data(), from.bytes());
  }
  void CopyIn(Tensor to, const void* host) override { CopyBytes(to.data(), host, to.bytes()); }
  void CopyOut(void* host, Tensor from) override { CopyBytes(host, from.data(), from.bytes()); }
  void Synchronize() override {}
  const Ops& ops() const override { return ops_; }
  bool host_memory() const override { return false; }  // as on a card
  DeviceNetwork* network() override { return nullptr; }

 private:
  static void CopyBytes(void* to, const void* from, int64_t bytes) {
    if (bytes > 0 && to != from) std::memmove(to, from, static_cast<size_t>(bytes));
  }

  Workspace workspace_;
  CudaOps ops_;
};

}  // namespace

std::unique_ptr<Device> MakeEmulatedDevice() { return std::make_unique<EmulatedDevice>(); }

}  // namespace twinstream
