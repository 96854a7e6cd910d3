// FakeStream: a stream of the stand-in for CUDA's runtime, on which nothing happens but by hand.
// cudaEventRecord puts a mark on it, number 1, 2, ...; an event has happened when its latest mark
// has, and one without a mark has.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

namespace twinstream::testing {

// All functions: from any thread.
class FakeStream {
 public:
  FakeStream();
  ~FakeStream();
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;

  cudaStream_t get() const { return stream_; }
  int64_t marks() const;
  // The marks up to number `last` happen.
  void Reach(int64_t last);
  // The marks, in the order of the calls, that cudaStreamWaitEvent has made the stream wait for.
  std::vector<int64_t> awaited() const;

 private:
  cudaStream_t stream_;
};

// What cudaEventQuery returns from now on of every event, instead of whether it has happened.
void FailEventQueries(cudaError_t error);
// The card of every thread that has called cudaSetDevice, in the order of the calls.
std::vector<int> CardsSet();

}  // namespace twinstream::testing
