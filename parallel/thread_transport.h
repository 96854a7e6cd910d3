// ThreadTransport: ranks as threads of one process. Nothing is buffered: a message is copied once,
// from the sender's memory into the receiver's, when both have come; so a send is done only when
// its receive is, the strictest timing that MPI allows. Waiting never spins.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
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
    int owner = 0, peer = 0;
    const std::byte* source = nullptr;  // of a send
    std::byte* destination = nullptr;   // of a receive
    int64_t bytes = 0;                  // sent, or expected
    int64_t arrived = 0;                // bytes of the other side; when done
    bool done = false;
  };
  // Both sides of one (from, to, tag), in the order in which they came. One of them is empty.
  struct ChannelQueues {
    std::deque<Request> sends, receives;
  };
  using ChannelKey = std::tuple<int, int, int>;

  Request Post(Operation operation, const ChannelKey& key, bool is_send);
  // Copies outside the lock; nobody else touches the two operations until they are done.
  void Deliver(std::unique_lock<std::mutex>& lock, Request send, Request receive);

  std::mutex mutex_;                           // guards all below
  std::vector<std::condition_variable> wake_;  // [rank]
  absl::flat_hash_map<Request, std::unique_ptr<Operation>> operations_;
  absl::flat_hash_map<ChannelKey, ChannelQueues> channels_;
  Request next_request_ = 0;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(ThreadHub& hub, int rank);

  int rank() const override { return rank_; }
  int size() const override { return hub_.size(); }
  Request Send(absl::Span<const std::byte> bytes, int to, int tag) override;
  Request Receive(absl::Span<std::byte> bytes, int from, int tag) override;
  void Wait(Request request, const char* what) override;
  void SetWaitPolicy(WaitPolicy policy) override;

 private:
  ThreadHub& hub_;
  const int rank_;
  WaitMonitor monitor_;
};

}  // namespace twinstream
