// The emulated twin of native/gpu/stream.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace twinstream::gpu {

struct Stream {};  // work is done when its launch returns

inline void Clear(std::byte* data, int64_t bytes, Stream /*stream*/) {
  std::memset(data, 0, static_cast<size_t>(bytes));
}

}  // namespace twinstream::gpu
