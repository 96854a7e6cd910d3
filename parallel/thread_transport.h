// ThreadTransport: ranks as threads of one process. Nothing is buffered: a message is copied once,
// from the sender's memory into the receiver's, when both have come; so a send is done only when
// its receive is, the strictest timing that MPI allows. Waiting never spins.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "parallel/transport.h"
#include "parallel/wait_monitor.h"

namespace twinstream {

// Where the threads' sends and receives meet. Outlives its transports. Thread-safe.
class ThreadHub {
 public:
  using Request = Transport::Request;

  explicit ThreadHub(int ranks);
  int size() const { return static_cast<int>(wake_.size()); }

  Request Send(absl::Span<const std::byte> bytes, int from, int to, int tag);
  Request Receive(absl::Span<std::byte> bytes, int from, int to, int tag);
  void Wait(int rank, Request request, const char* what, WaitMonitor& monitor);

 private:
  struct Operation {
    bool in_use = false;
    int owner = 0, peer = 0;
    const std::byte* source = nullptr;  // of a send
    std::byte* destination = nullptr;   // of a receive
    int64_t bytes = 0;                  // sent, or expected
    int64_t arrived = 0;                // bytes of the other side; when done
    bool done = false;
  };
  // One side of a message that waits for the other: who, to whom, under which tag.
  struct Open {
    int from = 0, to = 0, tag = 0;
    bool is_send = false;
    Request request = 0;
    bool Meets(const Open& other) const;
  };

  Request Post(const Operation& operation, Open open);
  // Copies outside the lock; nobody else touches the two operations until they are done.
  void Deliver(std::unique_lock<std::mutex>& lock, Request send, Request receive);

  std::mutex mutex_;                           // guards all below
  std::vector<std::condition_variable> wake_;  // [rank]
  std::deque<Operation> operations_;  // [request]; records are used again, and stay in place
  std::vector<Request> unused_;       // records of operations_ that are free
  std::vector<Open> open_;            // in the order in which they came; few at a time
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(ThreadHub& hub, int rank);

  int rank() const override { return rank_; }
  int size() const override { return hub_.size(); }
  Request Send(absl::Span<const std::byte> bytes, int to, int tag) override;
  Request Receive(absl::Span<std::byte> bytes, int from, int tag) override;
  void Wait(Request request, const char* what) override;
  void WaitInBackground(Request request, const char* what) override { Wait(request, what); }
  bool Progress() override { return false; }  // messages move when their second side comes
  void SetWaitPolicy(WaitPolicy policy) override;
  double timeout_seconds() const override { return monitor_.timeout_seconds(); }
  std::string WaitInProgress(double at_least_seconds) const override;

 private:
  ThreadHub& hub_;
  const int rank_;
  WaitMonitor monitor_;
};

}  // namespace twinstream
