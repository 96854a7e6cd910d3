#include "parallel/wait_monitor.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"

namespace twinstream {

using std::chrono::milliseconds;

WaitMonitor::WaitMonitor(int rank) { policy_.self = absl::StrCat("rank ", rank); }

void WaitMonitor::SetPolicy(WaitPolicy policy) {
  if (policy.self.empty()) policy.self = policy_.self;
  policy_ = std::move(policy);
}

WaitMonitor::Wait::Wait(WaitMonitor& monitor, const char* what, int peer)
    : monitor_(monitor), what_(what), peer_(peer), next_question_(start_ + milliseconds(100)) {}

WaitMonitor::Clock::duration WaitMonitor::Wait::Look() {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const WaitPolicy& policy = monitor_.policy_;
  Check(seconds < policy.timeout_seconds, "%s waited %g s in %s for rank %d", policy.self,
        policy.timeout_seconds, what_, peer_);
  if (now >= next_question_) AskWhetherToldToEnd(now);
  return now - start_;
}

void WaitMonitor::Wait::AskWhetherToldToEnd(Clock::time_point now) {
  next_question_ = now + milliseconds(100);
  const WaitPolicy& policy = monitor_.policy_;
  if (monitor_.has_spoken_ || !policy.told_to_end || !policy.told_to_end()) return;
  if (!told_) told_ = now;
  if (now - *told_ < milliseconds(500)) return;
  monitor_.has_spoken_ = true;
  const std::string activity = CurrentActivity();
  const std::string line = absl::StrFormat(
      "%s was waiting in %s for rank %d when it was told to end%s\n", policy.self, what_, peer_,
      activity.empty() ? "" : absl::StrCat(" (during ", activity, ")"));
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

void WaitMonitor::CheckSize(int64_t expected, int64_t arrived, const char* what, int peer) const {
  Check(arrived == expected, "%s expected %d bytes in %s from rank %d and got %d", policy_.self,
        expected, what, peer, arrived);
}

}  // namespace twinstream
