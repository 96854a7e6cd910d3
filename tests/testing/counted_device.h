// Another device, counting what is asked of it. For all threads of a rank.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/functional/function_ref.h"
#include "core/device.h"

namespace twinstream::testing {

class CountedDevice final : public Device {
 public:
  explicit CountedDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  absl::string_view name() const override { return device_->name(); }
  std::byte* Allocate(int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    counts_.allocated += bytes;
    return device_->Allocate(bytes);
  }
  void Free(std::byte* data, int64_t bytes) override { device_->Free(data, bytes); }
  int64_t FreeBytes() const override { return device_->FreeBytes(); }
  std::byte* AllocateHost(int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    std::byte* const data = device_->AllocateHost(bytes);
    counts_.host_allocated += bytes;
    counts_.host_held += bytes;
    host_[data] = bytes;
    return data;
  }
  void FreeHost(std::byte* data, int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    host_.erase(data);
    counts_.host_held -= bytes;
    device_->FreeHost(data, bytes);
  }
  void Copy(Tensor to, Tensor from) override { device_->Copy(to, from); }
  void CopyIn(Tensor to, const void* host) override {
    Count(host, to.bytes(), &counts_.copies_in);
    device_->CopyIn(to, host);
  }
  void CopyOut(void* host, Tensor from) override {
    Count(host, from.bytes(), &counts_.copies_out);
    device_->CopyOut(host, from);
  }
  void Synchronize() override { device_->Synchronize(); }
  std::unique_ptr<RecordedWork> Record(absl::FunctionRef<void()> issue) override {
    return device_->Record(issue);
  }
  const Ops& ops() const override { return device_->ops(); }
  bool host_memory() const override { return device_->host_memory(); }
  DeviceNetwork* network() override { return device_->network(); }

  struct Counts {
    int64_t allocated = 0, host_allocated = 0, host_held = 0;  // bytes
    int64_t copies_in = 0, copies_out = 0;
    int64_t pageable_copies = 0;  // of them, whose host memory is not all within one AllocateHost
  };
  Counts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  void Count(const void* host, int64_t bytes, int64_t* copies) {
    const std::lock_guard lock(mutex_);
    ++*copies;
    if (bytes == 0) return;
    const auto* const data = static_cast<const std::byte*>(host);
    const auto after = host_.upper_bound(data);
    const bool own = after != host_.begin() &&
                     data + bytes <= std::prev(after)->first + std::prev(after)->second;
    if (!own) ++counts_.pageable_copies;
  }

  std::unique_ptr<Device> device_;
  mutable std::mutex mutex_;
  Counts counts_;
  std::map<const std::byte*, int64_t> host_;  // bytes, by where they begin
};

}  // namespace twinstream::testing
