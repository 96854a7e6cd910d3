// Owners of a stream and of an event, on the calling thread's card.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda/check.h"

namespace twinstream {

// Its work goes on beside all other streams', and before theirs where they want the same
// multiprocessors.
class UrgentStream {
 public:
  UrgentStream() {
    int least = 0, greatest = 0;
    Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    Check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
          "cudaStreamCreateWithPriority");
  }
  ~UrgentStream() { cudaStreamDestroy(stream_); }
  UrgentStream(const UrgentStream&) = delete;
  UrgentStream& operator=(const UrgentStream&) = delete;

  cudaStream_t get() const { return stream_; }
  void Synchronize() const { Check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

// A point in the work of a stream; tells no time.
class CudaEvent {
 public:
  CudaEvent() {
    Check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
  ~CudaEvent() { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void Record(cudaStream_t stream) { Check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  // Later work of `stream` waits for the latest Record before this.
  void MakeWait(cudaStream_t stream) const {
    Check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  void Synchronize() const { Check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  bool Happened() const {
    const cudaError_t error = cudaEventQuery(event_);
    if (error != cudaErrorNotReady) Check(error, "cudaEventQuery");
    return error == cudaSuccess;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace twinstream
