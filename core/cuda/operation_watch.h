// OperationWatch: sees to it that operations between cards end. They run on a stream, where no
// thread waits for them; here one looks at them from time to time, and ends the process when the
// network has failed or the oldest of them has been running for too long. Operations that a capture
// records are not watched: they run when the graph does, and nobody may ask after their events.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "core/cuda/stream.h"
#include "core/device_collectives.h"

namespace twinstream {

class OperationWatch {
 public:
  using Number = DeviceCollectives::Number;  // of an operation: 1, 2, ...
  static constexpr Number kMostUnderWay = 256;

  struct Options {
    int card = 0;
    std::string group;  // for messages
    double timeout_seconds = 600;
    std::function<std::string()> failure;  // of the network, or empty; called from any thread
  };
  // `stream` outlives the watch, whose owner alone gives it operations.
  OperationWatch(Options options, cudaStream_t stream);
  ~OperationWatch();

  // Around the calls that put an operation on the stream. what: outlives the watch. Begin waits
  // while kMostUnderWay operations are under way. The number of an operation that is recorded is
  // good until the next one that is not.
  Number Begin(const char* what);
  void End();
  // Later work of `other` waits for the operation.
  void MakeWait(cudaStream_t other, Number number);

 private:
  using Clock = std::chrono::steady_clock;
  struct Operation {
    const char* what = "";
    CudaEvent started, ended;
  };

  void Watch();
  void Look();  // under the lock
  bool IsRunning();
  bool IsRecorded(Number number) const { return number > begun_; }
  Operation& At(Number number) { return operations_[static_cast<size_t>(number % kMostUnderWay)]; }

  const Options options_;
  const cudaStream_t stream_;
  // Guards what follows. The owner's thread alone writes begun_ and put_ and records the events, so
  // it reads them without the lock.
  std::mutex mutex_;
  std::condition_variable wake_;
  std::array<Operation, kMostUnderWay> operations_;  // a ring
  Number begun_ = 0, put_ = 0;                       // Begin, End have been called for so many
  Number done_ = 0;                                  // have been seen to end
  bool running_ = false;                             // the one after done_, since
  Clock::time_point since_;
  bool closing_ = false;
  // Their ends, of the owner's thread alone. Not a ring: nobody waits for the oldest meanwhile.
  std::deque<CudaEvent> recorded_;
  std::thread thread_;  // last
};

}  // namespace twinstream
