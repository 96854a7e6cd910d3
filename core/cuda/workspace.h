#pragma once

#include <cstddef>
#include <cstdint>

#include "core/check.h"

namespace twinstream {

// Memory of the device for what kernels hand each other within one operation.
struct Workspace {
  std::byte* data = nullptr;  // aligned to 256 bytes
  int64_t bytes = 0;

  // The first `elements` of it as T; dies when they do not fit.
  template <class T>
  T* As(int64_t elements) const {
    Check(elements * static_cast<int64_t>(sizeof(T)) <= bytes,
          "an operation needs %d bytes of workspace, there are %d",
          elements * static_cast<int64_t>(sizeof(T)), bytes);
    return reinterpret_cast<T*>(data);
  }
};
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

}  // namespace twinstream
