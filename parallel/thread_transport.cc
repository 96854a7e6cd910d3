#include "parallel/thread_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace twinstream {

// Records for as many messages as ranks have under way in a training step: which of them are in use
// at a time is up to the scheduler, and no step should depend on it for memory.
ThreadHub::ThreadHub(int ranks)
    : wake_(static_cast<size_t>(ranks)), operations_(64 * static_cast<size_t>(ranks)) {
  Check(ranks > 0, "a hub of %d ranks", ranks);
  for (size_t i = operations_.size(); i-- > 0;) unused_.push_back(static_cast<Request>(i));
  open_.reserve(operations_.size());
}

Transport::Request ThreadHub::Send(absl::Span<const std::byte> bytes, int from, int to, int tag) {
  const Operation send = {.owner = from,
                          .peer = to,
                          .source = bytes.data(),
                          .bytes = static_cast<int64_t>(bytes.size())};
  return Post(send, {.from = from, .to = to, .tag = tag, .is_send = true});
}

Transport::Request ThreadHub::Receive(absl::Span<std::byte> bytes, int from, int to, int tag) {
  const Operation receive = {.owner = to,
                             .peer = from,
                             .destination = bytes.data(),
                             .bytes = static_cast<int64_t>(bytes.size())};
  return Post(receive, {.from = from, .to = to, .tag = tag, .is_send = false});
}

bool ThreadHub::Open::Meets(const Open& other) const {
  return from == other.from && to == other.to && tag == other.tag && is_send != other.is_send;
}

Transport::Request ThreadHub::Post(const Operation& operation, Open open) {
  Check(0 <= operation.peer && operation.peer < size(), "rank %d of %d is asked for a message",
        operation.peer, size());
  std::unique_lock<std::mutex> lock(mutex_);
  if (unused_.empty()) {
    unused_.push_back(static_cast<Request>(operations_.size()));
    operations_.emplace_back();
  }
  open.request = unused_.back();
  unused_.pop_back();
  Operation& record = operations_[static_cast<size_t>(open.request)];
  record = operation;
  record.in_use = true;
  const auto other = std::find_if(open_.begin(), open_.end(),
                                  [&](const Open& waiting) { return open.Meets(waiting); });
  if (other == open_.end()) {
    open_.push_back(open);
    return open.request;
  }
  const Request request = other->request;
  open_.erase(other);
  if (open.is_send) {
    Deliver(lock, open.request, request);
  } else {
    Deliver(lock, request, open.request);
  }
  return open.request;
}

void ThreadHub::Deliver(std::unique_lock<std::mutex>& lock, Request send, Request receive) {
  Operation& from = operations_[static_cast<size_t>(send)];
  Operation& to = operations_[static_cast<size_t>(receive)];
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
  const bool exists = 0 <= request && request < static_cast<Request>(operations_.size());
  Check(exists && operations_[static_cast<size_t>(request)].in_use &&
            operations_[static_cast<size_t>(request)].owner == rank,
        "rank %d waits in %s for a request that it does not have", rank, what);
  Operation& operation = operations_[static_cast<size_t>(request)];
  WaitMonitor::Wait wait(monitor, what, operation.peer);
  std::condition_variable& wake = wake_[static_cast<size_t>(rank)];
  while (!wake.wait_for(lock, std::chrono::milliseconds(50), [&] { return operation.done; })) {
    lock.unlock();
    wait.Look();
    lock.lock();
  }
  monitor.CheckSize(operation.bytes, operation.arrived, what, operation.peer);
  operation.in_use = false;
  unused_.push_back(request);
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

std::string ThreadTransport::WaitInProgress(double at_least_seconds) const {
  return monitor_.WaitInProgress(at_least_seconds);
}

}  // namespace twinstream
