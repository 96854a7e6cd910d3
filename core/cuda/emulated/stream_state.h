// The state of streams and events, for the parts of the emulated runtime that change it:
// streams.cc, events.cc and captures.cc. The lock of TheRuntime() guards all of it.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace twinstream::gpu {

class Capture;

// As IssueAwaiting's.
using Advance = std::function<bool()>;

struct Work {
  Advance advance;
  bool tried = false;
};

// A point in the work of a stream. Shared by the stream that it is on and those that wait.
struct Mark {
  std::atomic<bool> happened = false;
};

// The same in a capture: after these of its nodes.
using CapturedPoint = std::set<size_t>;

struct Runtime {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t changes = 0;  // after which work that could not go on may
  std::vector<CUstream_st*> streams;
  uint32_t random = 1;

  void Change() {
    ++changes;
    changed.notify_all();
  }
};
Runtime& TheRuntime();

// Under the lock. To be done, whether the stream is captured or not.
void Append(CUstream_st& stream, Advance advance);
// Under the lock. A stream that goes once what it is given before the lock is left is done.
CUstream_st& MakePassingStream(int card);

}  // namespace twinstream::gpu

struct CUstream_st {
  int card = 0;
  bool is_passing = false;  // MakePassingStream's
  std::deque<twinstream::gpu::Work> work;
  int64_t issued = 0, done = 0;
  int64_t allowed = std::numeric_limits<int64_t>::max();  // of it may be done
  bool running = false;                                   // on some thread
  int64_t tried_at = -1;                                  // Runtime::changes at the latest try
  std::shared_ptr<twinstream::gpu::Capture> capture;      // that it has been taken into; or null
  size_t branch = 0;                                      // of the capture
};

// By its latest cudaEventRecord: at most one of mark and capture.
struct CUevent_st {
  int card = 0;
  std::shared_ptr<twinstream::gpu::Mark> mark;
  std::shared_ptr<twinstream::gpu::Capture> capture;
  twinstream::gpu::CapturedPoint point;  // of the capture
};
