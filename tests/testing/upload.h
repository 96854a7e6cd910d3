// Upload: tensors of host memory on a device, for as long as one call of an operation lasts.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "core/device.h"

namespace twinstream::testing {

class Upload {
 public:
  explicit Upload(Device& device) : device_(device) {}
  ~Upload();  // copies everything back, unless that is done
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  // Copies the tensors to the device and makes them point there. Tensors that overlap in host
  // memory overlap in the same way on the device. Once, for all tensors of the call.
  void Add(std::vector<Tensor*> tensors);
  void CopyBack();  // everything; what the device does to it later is lost

 private:
  // Host memory without a gap, and its copy.
  struct Piece {
    std::byte* begin;
    std::byte* end;
    Storage storage;

    // On the device it begins as far off 16 bytes as here.
    int64_t offset() const { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) % 16); }
    std::byte* data() const { return storage.data() + offset(); }
  };

  Device& device_;
  std::list<Piece> pieces_;
  bool is_back_ = false;
};

}  // namespace twinstream::testing
