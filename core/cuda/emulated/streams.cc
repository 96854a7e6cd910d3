// Streams, events and graphs of the emulated cards.
#include "core/cuda/emulated/streams.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/cuda/emulated/runtime.h"

namespace twinstream::gpu {
namespace {

using Advance = std::function<bool()>;

struct Work {
  Advance advance;
  bool tried = false;
};

}  // namespace
}  // namespace twinstream::gpu

struct CUstream_st {
  int card = 0;
  std::deque<twinstream::gpu::Work> work;
  int64_t issued = 0, done = 0;
  int64_t allowed = twinstream::gpu::kAllWork;  // of it may be done
  bool running = false;                         // on some thread
  int64_t tried_at = -1;                        // Runtime::changes at the latest try
  std::vector<twinstream::gpu::Advance>* capture = nullptr;
};

struct CUevent_st {
  int card = 0;
  int64_t mark = 0;  // the number of the latest cudaEventRecord; 0 before the first
};

struct CUgraph_st {
  std::vector<twinstream::gpu::Advance> work;
};
struct CUgraphExec_st {
  int card = 0;
  std::vector<twinstream::gpu::Advance> work;
};

namespace twinstream::gpu {
namespace {

struct Runtime {
  std::mutex mutex;  // guards what follows and all streams
  std::condition_variable changed;
  int64_t changes = 0;  // after which work that could not go on may
  std::vector<CUstream_st*> streams;
  int64_t marks = 0;                // calls of cudaEventRecord, numbered from 1
  std::set<int64_t> awaited_marks;  // those of them that have not happened
  uint32_t random = 1;

  void Change() {
    ++changes;
    changed.notify_all();
  }
};

Runtime& TheRuntime() {
  static Runtime& runtime = *new Runtime;  // never destroyed: devices may be later
  return runtime;
}

// Of the calling thread.
thread_local CUstream_st* captured_stream = nullptr;
thread_local std::vector<Advance> captured_work;
thread_local bool capture_is_broken = false;

bool CanGoOn(const CUstream_st& stream) {
  return !stream.running && !stream.work.empty() && stream.done < stream.allowed &&
         (!stream.work.front().tried || stream.tried_at != TheRuntime().changes);
}

// Null when none can.
CUstream_st* AnyThatCanGoOn() {
  Runtime& runtime = TheRuntime();
  const auto count = std::count_if(runtime.streams.begin(), runtime.streams.end(),
                                   [](const CUstream_st* stream) { return CanGoOn(*stream); });
  if (count == 0) return nullptr;
  runtime.random = runtime.random * 1664525U + 1013904223U;
  auto skip = (runtime.random >> 16) % count;
  for (CUstream_st* stream : runtime.streams) {
    if (CanGoOn(*stream) && skip-- == 0) return stream;
  }
  return nullptr;
}

// The first try of a piece of work is a change too: others may have waited for it to begin.
void GoOn(CUstream_st& stream, std::unique_lock<std::mutex>& lock) {
  Work& work = stream.work.front();
  stream.running = true;
  stream.tried_at = TheRuntime().changes;
  lock.unlock();
  const bool ended = work.advance();
  lock.lock();
  stream.running = false;
  if (ended || !work.tried) TheRuntime().Change();
  work.tried = true;
  if (ended) {
    stream.work.pop_front();
    ++stream.done;
  } else if (CanGoOn(stream)) {  // something changed meanwhile, when nobody could have a try at it
    TheRuntime().changed.notify_all();
  }
}

void Put(cudaStream_t stream, Advance advance) {
  const std::lock_guard lock(TheRuntime().mutex);
  if (stream->capture != nullptr) {
    Check(stream == captured_stream, "work for a stream that another thread captures");
    stream->capture->push_back(std::move(advance));
    return;
  }
  stream->work.push_back({std::move(advance)});
  ++stream->issued;
  TheRuntime().Change();
}

bool HasHappened(int64_t mark) {
  const std::lock_guard lock(TheRuntime().mutex);
  return TheRuntime().awaited_marks.count(mark) == 0;
}

}  // namespace

bool IsCapturing() { return captured_stream != nullptr; }
cudaError_t CaptureForbidsIt() {
  capture_is_broken = true;
  return Failed(cudaErrorStreamCaptureUnsupported);
}

void Issue(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr) return work();
  Put(stream, [work = std::move(work)] {
    work();
    return true;
  });
}

void IssueAwaiting(cudaStream_t stream, std::function<bool()> advance) {
  Check(stream != nullptr, "work that awaits others' without a stream");
  Put(stream, std::move(advance));
}

void CheckOnCurrentCard(cudaStream_t stream, const char* what) {
  if (stream == nullptr) return;
  Check(stream->card == CurrentCard(), "%s for a stream of card %d while card %d is current", what,
        stream->card, CurrentCard());
}

int CardOf(cudaStream_t stream) { return stream == nullptr ? CurrentCard() : stream->card; }

void WorkUntil(const std::function<bool()>& done) {
  Runtime& runtime = TheRuntime();
  std::unique_lock lock(runtime.mutex);
  while (!done()) {
    if (CUstream_st* const stream = AnyThatCanGoOn(); stream != nullptr) {
      GoOn(*stream, lock);
    } else {
      runtime.changed.wait(lock);
    }
  }
}

void WakeWaiting() {
  const std::lock_guard lock(TheRuntime().mutex);
  TheRuntime().Change();
}

cudaError_t AwaitCard(int card) {
  std::vector<std::pair<CUstream_st*, int64_t>> issued;
  {
    const std::lock_guard lock(TheRuntime().mutex);
    for (CUstream_st* stream : TheRuntime().streams) {
      if (stream->card == card) issued.emplace_back(stream, stream->issued);
    }
  }
  WorkUntil([&] {
    const auto& streams = TheRuntime().streams;
    const bool is_done = std::all_of(issued.begin(), issued.end(), [&](const auto& item) {
      const bool is_there = std::count(streams.begin(), streams.end(), item.first) > 0;
      return !is_there || item.first->done >= item.second;
    });
    return is_done || StateOf(card) != cudaSuccess;
  });
  return Failed(StateOf(card));
}

void AllowWork(cudaStream_t stream, int64_t pieces) {
  std::unique_lock lock(TheRuntime().mutex);
  stream->allowed = pieces;
  TheRuntime().Change();
  while (CUstream_st* const next = AnyThatCanGoOn()) GoOn(*next, lock);
}

int64_t PiecesIssued(cudaStream_t stream) {
  const std::lock_guard lock(TheRuntime().mutex);
  return stream->issued;
}

bool AnyStreams() {
  const std::lock_guard lock(TheRuntime().mutex);
  return !TheRuntime().streams.empty();
}

}  // namespace twinstream::gpu

using namespace twinstream::gpu;  // NOLINT: what follows is CUDA's, in no namespace

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  twinstream::Check(flags == cudaStreamNonBlocking && (priority == 0 || priority == kMostUrgent),
                    "a stream with the flags %d and the priority %d", flags, priority);
  if (IsCapturing()) return CaptureForbidsIt();
  *stream = new CUstream_st{.card = CurrentCard()};
  const std::lock_guard lock(TheRuntime().mutex);
  TheRuntime().streams.push_back(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (const cudaError_t error = cudaStreamSynchronize(stream); error != cudaSuccess) return error;
  const std::lock_guard lock(TheRuntime().mutex);
  std::erase(TheRuntime().streams, stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (IsCapturing()) return CaptureForbidsIt();
  WorkUntil([=, issued = int64_t{-1}]() mutable {
    if (issued < 0) issued = stream->issued;
    return stream->done >= issued || StateOf(stream->card) != cudaSuccess;
  });
  return Failed(StateOf(stream->card));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  twinstream::Check(flags == 0, "cudaStreamWaitEvent with the flags %d", flags);
  twinstream::Check(!IsCapturing(), "events in a capture are not emulated");
  if (event->mark != 0) Put(stream, [mark = event->mark] { return HasHappened(mark); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  twinstream::Check(flags == cudaEventDisableTiming, "an event with the flags %d", flags);
  *event = new CUevent_st{.card = CurrentCard()};
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  twinstream::Check(!IsCapturing(), "events in a capture are not emulated");
  if (event->card != stream->card) return Failed(cudaErrorInvalidResourceHandle);
  {
    const std::lock_guard lock(TheRuntime().mutex);
    event->mark = ++TheRuntime().marks;
    TheRuntime().awaited_marks.insert(event->mark);
  }
  Issue(stream, [mark = event->mark] {
    const std::lock_guard lock(TheRuntime().mutex);
    TheRuntime().awaited_marks.erase(mark);
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (IsCapturing()) return CaptureForbidsIt();
  if (const cudaError_t error = StateOf(CurrentCard()); error != cudaSuccess) return Failed(error);
  return HasHappened(event->mark) ? cudaSuccess : Failed(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (IsCapturing()) return CaptureForbidsIt();
  WorkUntil([event, mark = event->mark] {
    return TheRuntime().awaited_marks.count(mark) == 0 || StateOf(event->card) != cudaSuccess;
  });
  return Failed(StateOf(event->card));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  twinstream::Check(mode == cudaStreamCaptureModeThreadLocal, "another mode of capture");
  twinstream::Check(!IsCapturing(), "this thread captures already");
  const std::lock_guard lock(TheRuntime().mutex);
  captured_stream = stream;
  captured_work.clear();
  capture_is_broken = false;
  stream->capture = &captured_work;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  twinstream::Check(stream == captured_stream, "a capture ends that this thread has not begun");
  const std::lock_guard lock(TheRuntime().mutex);
  stream->capture = nullptr;
  captured_stream = nullptr;
  *graph = nullptr;
  if (capture_is_broken) return Failed(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(captured_work)};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {  // NOLINT(google-runtime-int)
  twinstream::Check(flags == 0, "cudaGraphInstantiate with the flags %d", flags);
  *exec = new CUgraphExec_st{.card = CurrentCard(), .work = graph->work};
  return cudaSuccess;
}

// Each run of its work begins anew.
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (exec->card != stream->card) return Failed(cudaErrorInvalidResourceHandle);
  for (const Advance& advance : exec->work) Put(stream, advance);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
