#include "parallel/mpi_transport.h"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "parallel/wait_monitor.h"

namespace twinstream {
namespace {

// Between two looks at a message that has not come: at first nothing, since a small one comes
// within microseconds; then the core goes to whoever wants it, which may be the very rank that is
// waited for; and after a while (a pipeline bubble) the core may rest. The sleep stays short
// because MPI moves a large message only while somebody looks.
void Rest(WaitMonitor::Clock::duration waited) {
  using std::chrono::microseconds;
  if (waited < microseconds(10)) return;
  if (waited < microseconds(5000)) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(microseconds(20));
  }
}

// The same for a thread beside a computing one, whose core it would take: what has not come when
// others who do the same at the same time could have sent it may take long.
void RestInBackground(WaitMonitor::Clock::duration waited) {
  using std::chrono::microseconds;
  if (waited < microseconds(200)) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(microseconds(50));
  }
}

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(const MpiTransportOptions& options)
      : largest_part_(options.largest_part),
        send_(options.synchronous_sends ? MPI_Issend : MPI_Isend),
        rank_(WorldRank()),
        size_(WorldSize()),
        monitor_(rank_) {
    Check(largest_part_ > 0 && largest_part_ <= INT32_MAX, "parts of %d bytes", largest_part_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Request Send(absl::Span<const std::byte> bytes, int to, int tag) override {
    const std::lock_guard lock(mutex_);
    const Request request = NewMessage(static_cast<int64_t>(bytes.size()), to, /*receives=*/false);
    Message& message = messages_[static_cast<size_t>(request)];
    for (size_t i = 0; i < message.parts.size(); ++i) {
      CheckMpi(send_(bytes.data() + PartBegin(i), PartBytes(message, i), MPI_BYTE, to, tag,
                     MPI_COMM_WORLD, &message.parts[i]),
               "MPI_Isend");
    }
    return request;
  }

  Request Receive(absl::Span<std::byte> bytes, int from, int tag) override {
    const std::lock_guard lock(mutex_);
    const Request request = NewMessage(static_cast<int64_t>(bytes.size()), from, /*receives=*/true);
    Message& message = messages_[static_cast<size_t>(request)];
    for (size_t i = 0; i < message.parts.size(); ++i) {
      CheckMpi(MPI_Irecv(bytes.data() + PartBegin(i), PartBytes(message, i), MPI_BYTE, from, tag,
                         MPI_COMM_WORLD, &message.parts[i]),
               "MPI_Irecv");
    }
    return request;
  }

  void Wait(Request request, const char* what) override { WaitUntilDone(request, what, Rest); }
  void WaitInBackground(Request request, const char* what) override {
    WaitUntilDone(request, what, RestInBackground);
  }

  bool Progress() override {
    const std::lock_guard lock(mutex_);
    bool under_way = false;
    for (Message& message : messages_) {
      under_way |= message.in_use && !IsDone(message, "a message under way");
    }
    return under_way;
  }

  void SetWaitPolicy(WaitPolicy policy) override { monitor_.SetPolicy(std::move(policy)); }
  double timeout_seconds() const override { return monitor_.timeout_seconds(); }

  std::string WaitInProgress(double at_least_seconds) const override {
    return monitor_.WaitInProgress(at_least_seconds);
  }

 private:
  struct Message {
    bool in_use = false;
    bool receives = false;
    int peer = 0;
    int64_t bytes = 0;
    std::vector<MPI_Request> parts;
    size_t parts_done = 0;
  };

  void WaitUntilDone(Request request, const char* what,
                     void (*rest)(WaitMonitor::Clock::duration waited)) {
    std::unique_lock lock(mutex_);
    Check(0 <= request && request < static_cast<int64_t>(messages_.size()) &&
              messages_[static_cast<size_t>(request)].in_use,
          "rank %d waits in %s for a request that it does not have", rank_, what);
    Message& message = messages_[static_cast<size_t>(request)];
    if (!IsDone(message, what)) {
      WaitMonitor::Wait wait(monitor_, what, message.peer);
      do {
        lock.unlock();
        rest(wait.Look());
        lock.lock();
      } while (!IsDone(message, what));
    }
    message.in_use = false;
    unused_.push_back(request);
  }

  static int WorldRank() {
    int rank = 0;
    CheckMpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    return rank;
  }

  static int WorldSize() {
    int size = 0;
    CheckMpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    return size;
  }

  // Records are used again, with their vectors: no allocation once all have been seen.
  Request NewMessage(int64_t bytes, int peer, bool receives) {
    Check(0 <= peer && peer < size_, "rank %d of %d is asked for a message", peer, size_);
    if (unused_.empty()) {
      unused_.push_back(static_cast<Request>(messages_.size()));
      messages_.emplace_back();
    }
    const Request request = unused_.back();
    unused_.pop_back();
    Message& message = messages_[static_cast<size_t>(request)];
    message.in_use = true;
    message.receives = receives;
    message.peer = peer;
    message.bytes = bytes;
    const int64_t parts = std::max<int64_t>(1, (bytes + largest_part_ - 1) / largest_part_);
    message.parts.assign(static_cast<size_t>(parts), MPI_REQUEST_NULL);
    message.parts_done = 0;
    return request;
  }

  int64_t PartBegin(size_t part) const { return static_cast<int64_t>(part) * largest_part_; }
  int PartBytes(const Message& message, size_t part) const {
    return static_cast<int>(std::min(largest_part_, message.bytes - PartBegin(part)));
  }

  // Moves everything that is under way, not only this message.
  bool IsDone(Message& message, const char* what) {
    for (; message.parts_done < message.parts.size(); ++message.parts_done) {
      int done = 0;
      MPI_Status status;
      const int result = MPI_Test(&message.parts[message.parts_done], &done, &status);
      CheckNotLonger(result, message, what);
      CheckMpi(result, "MPI_Test");
      if (!done) return false;
      if (message.receives) CheckPart(message, status, what);
    }
    return true;
  }

  void CheckNotLonger(int result, const Message& message, const char* what) const {
    int error_class = MPI_SUCCESS;
    if (result != MPI_SUCCESS) MPI_Error_class(result, &error_class);
    if (error_class != MPI_ERR_TRUNCATE) return;
    Die(absl::StrFormat("%s expected %d bytes in %s from %s and got more", monitor_.self(),
                        message.bytes, what, monitor_.Name(message.peer)));
  }

  void CheckPart(const Message& message, const MPI_Status& status, const char* what) const {
    int arrived = 0;
    CheckMpi(MPI_Get_count(&status, MPI_BYTE, &arrived), "MPI_Get_count");
    monitor_.CheckSize(PartBytes(message, message.parts_done), arrived, what, message.peer);
  }

  const int64_t largest_part_;
  decltype(&MPI_Isend) const send_;
  const int rank_, size_;
  WaitMonitor monitor_;
  std::mutex mutex_;              // guards what follows, and MPI
  std::deque<Message> messages_;  // [request]; records stay in place
  std::vector<Request> unused_;   // records of messages_ that are free
};

}  // namespace

void CheckMpi(int result, const char* call, const char* file, int line) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(result, text, &length);
  Die(absl::StrCat(call, " failed: ", text), file, line);
}

std::unique_ptr<Transport> MakeMpiTransport(const MpiTransportOptions& options) {
  return std::make_unique<MpiTransport>(options);
}

}  // namespace twinstream
