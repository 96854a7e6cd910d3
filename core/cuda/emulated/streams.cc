// Streams of the emulated cards.
#include "core/cuda/emulated/streams.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/cuda/emulated/captures.h"
#include "core/cuda/emulated/runtime.h"
#include "core/cuda/emulated/stream_state.h"

namespace twinstream::gpu {

Runtime& TheRuntime() {
  static Runtime& runtime = *new Runtime;  // never destroyed: devices may be later
  return runtime;
}

namespace {

bool CanGoOn(const CUstream_st& stream) {
  return !stream.running && !stream.work.empty() && stream.done < stream.allowed &&
         (!stream.work.front().tried || stream.tried_at != TheRuntime().changes);
}

// Null when none can.
CUstream_st* AnyThatCanGoOn() {
  Runtime& runtime = TheRuntime();
  if (TheHost().one_stream_at_a_time) {
    const auto is = [](const auto& what) {
      return std::any_of(TheRuntime().streams.begin(), TheRuntime().streams.end(), what);
    };
    if (is([](const CUstream_st* stream) { return stream->running; })) return nullptr;
    const auto is_latest = [&](const CUstream_st* stream) { return stream == runtime.latest; };
    if (is(is_latest) && CanGoOn(*runtime.latest)) return runtime.latest;
  }
  const auto count = std::count_if(runtime.streams.begin(), runtime.streams.end(),
                                   [](const CUstream_st* stream) { return CanGoOn(*stream); });
  if (count == 0) return nullptr;
  runtime.random = runtime.random * 1664525U + 1013904223U;
  auto skip = (runtime.random >> 16) % count;
  for (CUstream_st* stream : runtime.streams) {
    if (CanGoOn(*stream) && skip-- == 0) return runtime.latest = stream;
  }
  return nullptr;
}

void Remove(CUstream_st* stream) {
  std::erase(TheRuntime().streams, stream);
  delete stream;
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
    if (stream.is_passing && stream.work.empty()) Remove(&stream);
  } else if (CanGoOn(stream)) {  // something changed meanwhile, when nobody could have a try at it
    TheRuntime().changed.notify_all();
  }
}

void Put(cudaStream_t stream, Advance advance) {
  const std::lock_guard lock(TheRuntime().mutex);
  if (stream->capture != nullptr) return stream->capture->Add(*stream, std::move(advance));
  Append(*stream, std::move(advance));
}

CUstream_st* Make(int card) {
  TheRuntime().streams.push_back(new CUstream_st{.card = card});
  return TheRuntime().streams.back();
}

}  // namespace

void Append(CUstream_st& stream, Advance advance) {
  stream.work.push_back({std::move(advance)});
  ++stream.issued;
  TheRuntime().Change();
}

CUstream_st& MakePassingStream(int card) {
  CUstream_st* const stream = Make(card);
  stream->is_passing = true;
  return *stream;
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

// What is on a stream that passes, another one waits for.
cudaError_t AwaitCard(int card) {
  std::vector<std::pair<CUstream_st*, int64_t>> issued;
  {
    const std::lock_guard lock(TheRuntime().mutex);
    for (CUstream_st* stream : TheRuntime().streams) {
      if (stream->card == card && !stream->is_passing) issued.emplace_back(stream, stream->issued);
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
  const std::lock_guard lock(TheRuntime().mutex);
  *stream = Make(CurrentCard());
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (const cudaError_t error = cudaStreamSynchronize(stream); error != cudaSuccess) return error;
  const std::lock_guard lock(TheRuntime().mutex);
  Remove(stream);
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
