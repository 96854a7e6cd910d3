#include "parallel/thread_transport.h"

#include <cstring>
#include <utility>

#include "core/check.h"

namespace twinstream {

ThreadHub::ThreadHub(int ranks) : wake_(static_cast<size_t>(ranks)) {
  Check(ranks > 0, "a hub of %d ranks", ranks);
}

Transport::Request ThreadHub::Send(absl::Span<const std::byte> bytes, int from, int to, int tag) {
  const Operation send = {.owner = from,
                          .peer = to,
                          .source = bytes.data(),
                          .bytes = static_cast<int64_t>(bytes.size())};
  return Post(send, {from, to, tag}, /*is_send=*/true);
}

Transport::Request ThreadHub::Receive(absl::Span<std::byte> bytes, int from, int to, int tag) {
  const Operation receive = {.owner = to,
                             .peer = from,
                             .destination = bytes.data(),
                             .bytes = static_cast<int64_t>(bytes.size())};
  return Post(receive, {from, to, tag}, /*is_send=*/false);
}

Transport::Request ThreadHub::Post(Operation operation, const ChannelKey& key, bool is_send) {
  Check(0 <= operation.peer && operation.peer < size(), "rank %d of %d is asked for a message",
        operation.peer, size());
  std::unique_lock<std::mutex> lock(mutex_);
  const Request request = next_request_++;
  operations_[request] = std::make_unique<Operation>(operation);
  ChannelQueues& channel = channels_[key];
  std::deque<Request>& others = is_send ? channel.receives : channel.sends;
  if (others.empty()) {
    (is_send ? channel.sends : channel.receives).push_back(request);
    return request;
  }
  const Request other = others.front();
  others.pop_front();
  if (is_send) {
    Deliver(lock, request, other);
  } else {
    Deliver(lock, other, request);
  }
  return request;
}

void ThreadHub::Deliver(std::unique_lock<std::mutex>& lock, Request send, Request receive) {
  Operation& from = *operations_.at(send);
  Operation& to = *operations_.at(receive);
  lock.unlock();
  if (from.bytes == to.bytes && to.bytes > 0) {
    std::memcpy(to.destination, from.source, static_cast<size_t>(to.bytes));
  }
  lock.lock();
  to.arrived = from.bytes;
  from.arrived = from.bytes;  // only the receiver answers for a wrong size
  from.done = to.done = true;
  wake_[static_cast<size_t>(from.owner)].notify_all();
  wake_[static_cast<size_t>(to.owner)].notify_all();
}

void ThreadHub::Wait(int rank, Request request, const char* what, WaitMonitor& monitor) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = operations_.find(request);
  Check(found != operations_.end() && found->second->owner == rank,
        "rank %d waits in %s for a request that it does not have", rank, what);
  const Operation& operation = *found->second;
  WaitMonitor::Wait wait(monitor, what, operation.peer);
  std::condition_variable& wake = wake_[static_cast<size_t>(rank)];
  while (!wake.wait_for(lock, std::chrono::milliseconds(50), [&] { return operation.done; })) {
    lock.unlock();
    wait.Look();
    lock.lock();
  }
  monitor.CheckSize(operation.bytes, operation.arrived, what, operation.peer);
  operations_.erase(request);
}

ThreadTransport::ThreadTransport(ThreadHub& hub, int rank)
    : hub_(hub), rank_(rank), monitor_(rank) {
  Check(0 <= rank && rank < hub.size(), "rank %d of a hub of %d ranks", rank, hub.size());
}

Transport::Request ThreadTransport::Send(absl::Span<const std::byte> bytes, int to, int tag) {
  return hub_.Send(bytes, rank_, to, tag);
}

Transport::Request ThreadTransport::Receive(absl::Span<std::byte> bytes, int from, int tag) {
  return hub_.Receive(bytes, from, rank_, tag);
}

void ThreadTransport::Wait(Request request, const char* what) {
  hub_.Wait(rank_, request, what, monitor_);
}

void ThreadTransport::SetWaitPolicy(WaitPolicy policy) { monitor_.SetPolicy(std::move(policy)); }

}  // namespace twinstream
