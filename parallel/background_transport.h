// BackgroundTransport: the messages of a thread that works beside the computing one, over the same
// Transport: under tags of their own, so that they never mix with the other thread's, and waiting
// so that the cores stay with whoever computes.
#pragma once

#include <string>

#include "parallel/transport.h"

namespace twinstream {

class BackgroundTransport final : public Transport {
 public:
  // `foreground` outlives this.
  explicit BackgroundTransport(Transport& foreground) : foreground_(foreground) {}

  int rank() const override { return foreground_.rank(); }
  int size() const override { return foreground_.size(); }
  Request Send(absl::Span<const std::byte> bytes, int to, int tag) override;
  Request Receive(absl::Span<std::byte> bytes, int from, int tag) override;
  void Wait(Request request, const char* what) override;
  void WaitInBackground(Request request, const char* what) override;
  bool Progress() override { return foreground_.Progress(); }
  void SetWaitPolicy(WaitPolicy policy) override;
  double timeout_seconds() const override { return foreground_.timeout_seconds(); }
  std::string WaitInProgress(double at_least_seconds) const override;

 private:
  Transport& foreground_;
};

}  // namespace twinstream
