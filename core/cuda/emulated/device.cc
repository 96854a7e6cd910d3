#include "core/cuda/emulated/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

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

class EmulatedWork final : public RecordedWork {
 public:
  explicit EmulatedWork(std::vector<std::function<void()>> work) : work_(std::move(work)) {}
  void Run() override {
    for (const std::function<void()>& work : work_) work();
  }

 private:
  const std::vector<std::function<void()>> work_;
};

// An allocation ends, but for the rounding to kAlignment, where its guard page begins.
class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(int64_t workspace_bytes)
      : workspace_{Allocate(workspace_bytes), workspace_bytes},
        ops_(stream(), /*multiprocessors=*/2, workspace_, /*fused=*/nullptr) {}
  ~EmulatedDevice() override { Free(workspace_.data, workspace_.bytes); }

  absl::string_view name() const override { return "emulated"; }

  std::byte* Allocate(int64_t bytes) override {
    CheckNotRecording("memory is allocated");
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
    CheckNotRecording("memory is freed");
    std::byte* const guard = data + RoundUp(bytes, kAlignment);
    const int64_t pages = RoundUp(bytes, kPage);
    Check(IsCanary(guard - pages, data), "a kernel wrote in front of %d bytes", bytes);
    Check(IsCanary(data + bytes, guard), "a kernel wrote behind the end of %d bytes", bytes);
    munmap(guard - pages, static_cast<size_t>(pages + kPage));
  }

  int64_t FreeBytes() const override { return 0; }
  std::byte* AllocateHost(int64_t bytes) override { return Allocate(bytes); }
  void FreeHost(std::byte* data, int64_t bytes) override { Free(data, bytes); }

  void Copy(Tensor to, Tensor from) override {
    CheckCopy(to, from);
    gpu::Issue(stream(), [=] { CopyBytes(to.data(), from.data(), from.bytes()); });
  }
  void CopyIn(Tensor to, const void* host) override {
    CheckNotRecording("the host writes");
    CopyBytes(to.data(), host, to.bytes());
  }
  void CopyOut(void* host, Tensor from) override {
    CheckNotRecording("the host reads");
    CopyBytes(host, from.data(), from.bytes());
  }
  void Synchronize() override { CheckNotRecording("the host waits"); }
  std::unique_ptr<RecordedWork> Record(absl::FunctionRef<void()> issue) override {
    CheckNotRecording("another recording begins");
    recording_.under_way = true;
    issue();
    recording_.under_way = false;
    return std::make_unique<EmulatedWork>(std::exchange(recording_.work, {}));
  }
  const Ops& ops() const override { return ops_; }
  bool host_memory() const override { return false; }  // as on a card
  DeviceNetwork* network() override { return nullptr; }

 private:
  gpu::Stream stream() { return {&recording_}; }
  void CheckNotRecording(const char* what) const {
    Check(!recording_.under_way, "%s while the device records its work", what);
  }
  static void CopyBytes(void* to, const void* from, int64_t bytes) {
    if (bytes > 0 && to != from) std::memmove(to, from, static_cast<size_t>(bytes));
  }

  gpu::Recording recording_;
  Workspace workspace_;
  CudaOps ops_;
};

}  // namespace

std::unique_ptr<Device> MakeEmulatedDevice(int64_t workspace_bytes) {
  return std::make_unique<EmulatedDevice>(workspace_bytes);
}

}  // namespace twinstream
