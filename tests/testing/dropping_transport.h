// DroppingTransport: another transport, one of whose receives brings nothing: the fault of a
// forgotten or broken collective.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "absl/strings/string_view.h"
#include "parallel/transport.h"

namespace twinstream::testing {

class DroppingTransport final : public Transport {
 public:
  // Receives of `operation` ("all-reduce over tensor") from the `first`-th (0, 1, ...) to the
  // `last`-th leave zeros on this rank. `transport` outlives this.
  struct Fault {
    absl::string_view operation;
    int64_t first = 0, last = 0;
  };
  DroppingTransport(Transport& transport, Fault fault) : transport_(transport), fault_(fault) {}

  // How many receives of the operation there have been.
  int64_t seen() const { return seen_; }

  int rank() const override { return transport_.rank(); }
  int size() const override { return transport_.size(); }
  Request Send(absl::Span<const std::byte> bytes, int to, int tag) override {
    return transport_.Send(bytes, to, tag);
  }
  Request Receive(absl::Span<std::byte> bytes, int from, int tag) override {
    const std::lock_guard lock(mutex_);
    const Request request = transport_.Receive(bytes, from, tag);
    receives_[request] = bytes;
    return request;
  }
  void Wait(Request request, const char* what) override {
    const absl::Span<std::byte> bytes = Take(request);
    transport_.Wait(request, what);
    DropIfAsked(bytes, what);
  }
  void WaitInBackground(Request request, const char* what) override {
    const absl::Span<std::byte> bytes = Take(request);
    transport_.WaitInBackground(request, what);
    DropIfAsked(bytes, what);
  }
  bool Progress() override { return transport_.Progress(); }
  void SetWaitPolicy(WaitPolicy policy) override { transport_.SetWaitPolicy(std::move(policy)); }
  double timeout_seconds() const override { return transport_.timeout_seconds(); }
  std::string WaitInProgress(double at_least_seconds) const override {
    return transport_.WaitInProgress(at_least_seconds);
  }

 private:
  // Debug builds' collectives agree in messages of this size (CheckedCommunicator): no faults
  // there.
  static constexpr size_t kAgreementBytes = 16;

  // Before the wait: another thread's message may have the number afterwards.
  absl::Span<std::byte> Take(Request request) {
    const std::lock_guard lock(mutex_);
    const auto receive = receives_.find(request);
    if (receive == receives_.end()) return {};
    const absl::Span<std::byte> bytes = receive->second;
    receives_.erase(receive);
    return bytes;
  }

  void DropIfAsked(absl::Span<std::byte> bytes, const char* what) {
    const std::lock_guard lock(mutex_);
    if (bytes.size() <= kAgreementBytes || fault_.operation != what) return;
    if (fault_.first <= seen_ && seen_ <= fault_.last) std::memset(bytes.data(), 0, bytes.size());
    ++seen_;
  }

  Transport& transport_;
  const Fault fault_;
  std::mutex mutex_;
  std::map<Request, absl::Span<std::byte>> receives_;
  int64_t seen_ = 0;
};

}  // namespace twinstream::testing
