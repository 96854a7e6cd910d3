#include "parallel/wait_monitor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace twinstream {
namespace {

double SecondsSince(WaitMonitor::Clock::time_point start) {
  return std::chrono::duration<double>(WaitMonitor::Clock::now() - start).count();
}

}  // namespace

WaitMonitor::WaitMonitor(int rank) : rank_(rank) {
  waits_.reserve(8);  // more than there are threads: no wait allocates
}

void WaitMonitor::SetPolicy(WaitPolicy policy) {
  const std::lock_guard lock(mutex_);
  policy_ = std::move(policy);
}

std::string WaitMonitor::Name(int rank) const {
  return policy_.name_of ? policy_.name_of(rank) : absl::StrCat("rank ", rank);
}

std::string WaitMonitor::WaitInProgress(double at_least_seconds) const {
  const std::lock_guard lock(mutex_);
  if (waits_.empty() || SecondsSince(waits_[0]->start_) < at_least_seconds) return "";
  const Wait& wait = *waits_[0];
  const std::string activity = ToString(wait.activity_);
  return absl::StrFormat("%s was waiting in %s for %s%s", self(), wait.what_, Name(wait.peer_),
                         activity.empty() ? "" : absl::StrCat(" (during ", activity, ")"));
}

WaitMonitor::Wait::Wait(WaitMonitor& monitor, const char* what, int peer)
    : monitor_(monitor), what_(what), peer_(peer), activity_(ActivityOfThisThread()) {
  const std::lock_guard lock(monitor_.mutex_);
  monitor_.waits_.push_back(this);
}

WaitMonitor::Wait::~Wait() {
  const std::lock_guard lock(monitor_.mutex_);
  monitor_.waits_.erase(std::find(monitor_.waits_.begin(), monitor_.waits_.end(), this));
}

WaitMonitor::Clock::duration WaitMonitor::Wait::Look() {
  const double timeout = monitor_.policy_.timeout_seconds;
  const Clock::duration waited = Clock::now() - start_;
  if (std::chrono::duration<double>(waited).count() >= timeout) {
    Die(absl::StrFormat("%s waited %g s in %s for %s", monitor_.self(), timeout, what_,
                        monitor_.Name(peer_)));
  }
  return waited;
}

void WaitMonitor::CheckSize(int64_t expected, int64_t arrived, const char* what, int peer) const {
  if (arrived == expected) return;
  Die(absl::StrFormat("%s expected %d bytes in %s from %s and got %d", self(), expected, what,
                      Name(peer), arrived));
}

}  // namespace twinstream
