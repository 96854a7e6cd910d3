// The emulated twin of native/gpu/stream.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

namespace twinstream::gpu {

// What a stream was given while a recording was under way, each with its arguments by value: what
// the host changes later, or gives anew in each step, does not reach them, as on a card.
struct Recording {
  bool under_way = false;
  std::vector<std::function<void()>> work;
};

// Work is done when its launch returns, or kept while a recording is under way.
struct Stream {
  Recording* recording = nullptr;  // null: none ever is
};

// work: a copyable function of nothing.
template <class F>
void Issue(Stream stream, F work) {
  if (stream.recording != nullptr && stream.recording->under_way) {
    stream.recording->work.emplace_back(std::move(work));
  } else {
    work();
  }
}

inline void Clear(std::byte* data, int64_t bytes, Stream stream) {
  Issue(stream, [=] { std::memset(data, 0, static_cast<size_t>(bytes)); });
}

}  // namespace twinstream::gpu
