// The state of streams and events, for the parts of the emulated runtime that change it:
// streams.cc, events.cc and captures.cc. The lock of TheRuntime() guards all of it.
#pragma once

#include <cuda_runtime.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "core/cuda/emulated/runtime.h"

namespace twinstream::gpu {

class Capture;

// As IssueAwaiting's.
using Advance = std::function<bool()>;

struct Work {
  Advance advance;
  bool tried = false;
};

// A point in the work of a stream: 1, 2, ..., or 0, which happened before all.
using Mark = int64_t;

// The same in a capture: after these of its nodes.
using CapturedPoint = std::set<size_t>;

struct Runtime {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t changes = 0;  // after which work that could not go on may
  std::vector<CUstream_st*> streams;
  std::vector<std::unique_ptr<Capture>> captures;  // for ever: events may name them
  Mark marks = 0;                                  // so many have been made
  std::set<Mark> awaited_marks;                    // those of them that have not happened
  uint32_t random = 1;
  CUstream_st* latest = nullptr;  // that was chosen; may be gone

  void Change() {
    ++changes;
    changed.notify_all();
  }
  Mark NewMark() {
    awaited_marks.insert(++marks);
    return marks;
  }
  bool HasHappened(Mark mark) const { return awaited_marks.count(mark) == 0; }
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
  int64_t allowed = twinstream::gpu::kAllWork;  // of it may be done
  bool running = false;                         // on some thread
  int64_t tried_at = -1;                        // Runtime::changes at the latest try
  twinstream::gpu::Capture* capture = nullptr;  // that it has been taken into; or null
  size_t branch = 0;                            // of the capture
};

// By its latest cudaEventRecord: at most one of mark and capture.
struct CUevent_st {
  int card = 0;
  twinstream::gpu::Mark mark = 0;
  twinstream::gpu::Capture* capture = nullptr;
  twinstream::gpu::CapturedPoint point;  // of the capture
};
