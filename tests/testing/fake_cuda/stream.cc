#include "tests/testing/fake_cuda/stream.h"

#include <condition_variable>
#include <mutex>

struct CUstream_st {
  int64_t marks = 0, reached = 0;
  std::vector<int64_t> awaited;
};
struct CUevent_st {
  const CUstream_st* stream = nullptr;
  int64_t mark = 0;

  bool Happened() const { return stream == nullptr || mark <= stream->reached; }
};

namespace twinstream::testing {
namespace {

struct Runtime {
  std::mutex mutex;  // guards what follows, all streams and all events
  std::condition_variable reached;
  std::vector<int> cards;
  cudaError_t query_error = cudaSuccess;
};

Runtime& TheRuntime() {
  static Runtime& runtime = *new Runtime;  // never destroyed: threads may use it to the end
  return runtime;
}

thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

FakeStream::FakeStream() : stream_(new CUstream_st) {}
FakeStream::~FakeStream() { delete stream_; }

int64_t FakeStream::marks() const {
  const std::lock_guard lock(TheRuntime().mutex);
  return stream_->marks;
}

void FakeStream::Reach(int64_t last) {
  const std::lock_guard lock(TheRuntime().mutex);
  stream_->reached = last;
  TheRuntime().reached.notify_all();
}

std::vector<int64_t> FakeStream::awaited() const {
  const std::lock_guard lock(TheRuntime().mutex);
  return stream_->awaited;
}

void FailEventQueries(cudaError_t error) {
  const std::lock_guard lock(TheRuntime().mutex);
  TheRuntime().query_error = error;
}

std::vector<int> CardsSet() {
  const std::lock_guard lock(TheRuntime().mutex);
  return TheRuntime().cards;
}

}  // namespace twinstream::testing

using twinstream::testing::last_error;
using twinstream::testing::TheRuntime;

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : "another error";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "unspecified launch failure" : "another error";
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaSetDevice(int card) {
  const std::lock_guard lock(TheRuntime().mutex);
  TheRuntime().cards.push_back(card);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(TheRuntime().mutex);
  event->stream = stream;
  event->mark = ++stream->marks;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(TheRuntime().mutex);
  const cudaError_t failure = TheRuntime().query_error;
  if (failure != cudaSuccess) return failure;
  if (event->Happened()) return cudaSuccess;
  last_error = cudaErrorNotReady;
  return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::unique_lock lock(TheRuntime().mutex);
  TheRuntime().reached.wait(lock, [event] { return event->Happened(); });
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  const std::lock_guard lock(TheRuntime().mutex);
  stream->awaited.push_back(event->mark);
  return cudaSuccess;
}
