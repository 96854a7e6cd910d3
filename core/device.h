// Device: where memory lives and which operations run there. The only hardware interface besides
// Ops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/tensor.h"

namespace twinstream {

class DeviceNetwork;
class Ops;

// Work that a device, which outlives it, has recorded.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  // Issues all of it as it was recorded: in the same order, at the same addresses and with the same
  // arguments, on what is in the device's memory when its turn comes.
  virtual void Run() = 0;
};

// Work is ordered: copies and Ops of one device run one after another, as they were issued. Work
// may be asynchronous to the calling thread until Synchronize().
class Device {
 public:
  virtual ~Device() = default;
  // For people: "cpu", "cuda", and of a library that computes some operations its name.
  virtual absl::string_view name() const = 0;
  virtual std::byte* Allocate(
      int64_t bytes) = 0;  // 64-byte aligned, zeroed; dies when there is none
  virtual void Free(std::byte* data, int64_t bytes) = 0;
  // What Allocate could still give of the device's own memory; 0 where it has none.
  virtual int64_t FreeBytes() const = 0;
  // Memory of the host for what is often copied in or out. A card's is page-locked: from any other
  // memory its driver copies by way of a buffer of its own. Zeroed; dies when there is none.
  virtual std::byte* AllocateHost(int64_t bytes) = 0;
  virtual void FreeHost(std::byte* data, int64_t bytes) = 0;
  virtual void Copy(Tensor to,
                    Tensor from) = 0;  // both on this device; same dtype and element count
  // to.bytes() bytes, of any memory of the host; returns when it may change again.
  virtual void CopyIn(Tensor to, const void* host) = 0;
  virtual void CopyOut(void* host, Tensor from) = 0;  // returns when they have arrived
  virtual void Synchronize() = 0;
  // Records what `issue` gives this device, Ops and Copy, without doing it. Until it returns nobody
  // may allocate or free its memory or the host's for it, or wait for it, as CopyIn and CopyOut do:
  // that dies. Null, with nothing done, where the device does not record; `issue` may have been
  // called all the same.
  virtual std::unique_ptr<RecordedWork> Record(absl::FunctionRef<void()> issue) = 0;
  virtual const Ops& ops() const = 0;
  // Whether the host may read and write the device's memory like its own.
  virtual bool host_memory() const = 0;
  // What exchanges data among devices without the host; null: nothing does. Lives with the device.
  virtual DeviceNetwork* network() = 0;
};

struct DeviceOptions {
  int threads = 0;  // compute threads (CPU only); 0: leave OpenMP's default
  // Among the ranks of this host, for each its card (CUDA only); when there are more ranks than
  // cards, they share them.
  int local_rank = 0;
};

// name: "cpu" or "cuda". FailedPrecondition, in one sentence with the remedy, when this program or
// this host lacks something that the device needs.
absl::StatusOr<std::unique_ptr<Device>> MakeDevice(absl::string_view name,
                                                   const DeviceOptions& options = {});

// OK where MakeDevice("cuda") would find a card for this rank of the host; nothing is started on
// it. NotFound without NVIDIA's driver, else MakeDevice's reason.
absl::Status UsableCard(int local_rank);

// The one owner of a piece of device memory. Move-only; zeroed at birth.
class Storage {
 public:
  Storage() = default;
  Storage(Device& device, int64_t bytes);
  Storage(Storage&& other) noexcept;
  Storage& operator=(Storage&& other) noexcept;
  ~Storage();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// The one owner of elements of AllocateHost's memory. Move-only; zeroed at birth. The device
// outlives it.
template <typename T>
class HostArray {
 public:
  HostArray() = default;
  HostArray(Device& device, int64_t size)
      : device_(&device),
        data_(size == 0 ? nullptr : reinterpret_cast<T*>(device.AllocateHost(size * kElement))),
        size_(size) {}
  HostArray(HostArray&& other) noexcept
      : device_(other.device_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  HostArray& operator=(HostArray&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~HostArray() {
    if (data_ != nullptr) device_->FreeHost(reinterpret_cast<std::byte*>(data_), size_ * kElement);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return static_cast<size_t>(size_); }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  const T* begin() const { return data_; }
  T* end() { return data_ + size_; }
  const T* end() const { return data_ + size_; }

 private:
  static constexpr int64_t kElement = sizeof(T);  // bytes

  Device* device_ = nullptr;
  T* data_ = nullptr;
  int64_t size_ = 0;
};

// to <- the values, to.elements() of them: float32, or bf16 to nearest.
void CopyInRounded(Device& device, Tensor to, absl::Span<const float> values);

// Bytes that TensorsIn needs for these specs: each tensor aligned to 64 bytes.
int64_t BytesFor(absl::Span<const TensorSpec> specs);
// Tensors for the specs, one after another, in memory of at least BytesFor(specs) bytes.
std::vector<Tensor> TensorsIn(std::byte* data, absl::Span<const TensorSpec> specs);

// Bump allocator for temporaries: sized once, rewound after each use.
class Scratch {
 public:
  Scratch(Device& device, int64_t bytes) : storage_(device, bytes) {}
  Tensor Allocate(DType dtype, const Shape& shape);  // dies when full
  int64_t mark() const { return used_; }
  void Rewind(int64_t mark) { used_ = mark; }
  int64_t bytes() const { return storage_.bytes(); }

 private:
  Storage storage_;
  int64_t used_ = 0;
};

// Gives back, at the end of its life, what was allocated during it.
class ScratchScope {
 public:
  explicit ScratchScope(Scratch& scratch) : scratch_(scratch), mark_(scratch.mark()) {}
  ~ScratchScope() { scratch_.Rewind(mark_); }
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;

 private:
  Scratch& scratch_;
  int64_t mark_;
};

}  // namespace twinstream
