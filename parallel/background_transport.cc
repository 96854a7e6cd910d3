#include "parallel/background_transport.h"

#include <utility>

#include "core/check.h"

namespace twinstream {
namespace {

// Above every tag of the foreground; MPI promises tags up to 32767.
constexpr int kFirstTag = 1 << 14;

int TagOf(int tag) {
  Check(tag < kFirstTag, "tag %d is not below the background's %d", tag, kFirstTag);
  return kFirstTag + tag;
}

}  // namespace

Transport::Request BackgroundTransport::Send(absl::Span<const std::byte> bytes, int to, int tag) {
  return foreground_.Send(bytes, to, TagOf(tag));
}

Transport::Request BackgroundTransport::Receive(absl::Span<std::byte> bytes, int from, int tag) {
  return foreground_.Receive(bytes, from, TagOf(tag));
}

void BackgroundTransport::Wait(Request request, const char* what) {
  foreground_.WaitInBackground(request, what);
}

void BackgroundTransport::WaitInBackground(Request request, const char* what) {
  foreground_.WaitInBackground(request, what);
}

void BackgroundTransport::SetWaitPolicy(WaitPolicy policy) {
  foreground_.SetWaitPolicy(std::move(policy));
}

std::string BackgroundTransport::WaitInProgress(double at_least_seconds) const {
  return foreground_.WaitInProgress(at_least_seconds);
}

}  // namespace twinstream
