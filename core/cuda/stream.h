// Owners of what the CUDA runtime gives: a stream, an event, memory of a card. And what host code
// asks of a stream without a kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/cuda/check.h"

namespace twinstream {

// A stream of a card, which does not wait for work outside of it.
class CudaStream {
 public:
  // Urgent work goes before that of other streams where both want the same multiprocessors.
  enum class Priority { kUsual, kUrgent };

  // `card`, by CUDA's number, becomes the thread's current one.
  CudaStream(int card, Priority priority) {
    Check(cudaSetDevice(card), "cudaSetDevice");
    int value = 0;  // CUDA's usual priority
    if (priority == Priority::kUrgent) {
      Check(cudaDeviceGetStreamPriorityRange(/*leastPriority=*/nullptr, &value),
            "cudaDeviceGetStreamPriorityRange");
    }
    Check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, value),
          "cudaStreamCreateWithPriority");
  }
  ~CudaStream() { Check(cudaStreamDestroy(stream_), "cudaStreamDestroy"); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const { return stream_; }
  void Synchronize() const {
    Check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize: the work before it");
  }

 private:
  cudaStream_t stream_ = nullptr;
};

// Whether what the stream is given is recorded, since a capture has taken it in, and not done.
inline bool IsCaptured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

// A point in the work of a stream of the thread's current card; tells no time.
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
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();  // or the next launch would be blamed for it
      return false;
    }
    Check(error, "cudaEventQuery");
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Memory of the thread's current card, for cudaFree. Dies with the remedy when there is none left.
// purpose: of that message, "" or " for ...".
inline void* AllocateOnCard(int64_t bytes, absl::string_view purpose, absl::string_view remedy) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    int card = 0;
    size_t free = 0, total = 0;
    Check(cudaGetDevice(&card), "cudaGetDevice");
    Check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    Die(absl::StrFormat(
        "card %d has no %d bytes of memory left%s (%d of its %d bytes are free): %s", card, bytes,
        purpose, free, total, remedy));
  }
  Check(error, "cudaMalloc");
  return data;
}

// Memory of the thread's current card, beside what the device accounts for.
class CudaMemory {
 public:
  // owner: for the message that there is none left.
  CudaMemory(int64_t bytes, const char* owner)
      : data_(AllocateOnCard(
            bytes, absl::StrCat(" for ", owner),
            "see with nvidia-smi who else uses it, or use parallel.recompute, a smaller "
            "train.microbatch or a smaller model")) {}
  ~CudaMemory() { Check(cudaFree(data_), "cudaFree"); }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  template <typename T>
  T* As() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_;
};

namespace gpu {

using Stream = cudaStream_t;

// Zeroes memory of the device, in the stream's order.
inline void Clear(std::byte* data, int64_t bytes, Stream stream) {
  Check(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream), "cudaMemsetAsync");
}

}  // namespace gpu
}  // namespace twinstream
