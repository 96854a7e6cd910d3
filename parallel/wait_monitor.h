// WaitMonitor: what every transport does about a wait that lasts: dies with the names of who waits
// for whom when it is too long, and lets other threads ask.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "core/check.h"
#include "parallel/transport.h"

namespace twinstream {

class WaitMonitor {
 public:
  using Clock = std::chrono::steady_clock;

  explicit WaitMonitor(int rank);  // of who waits
  void SetPolicy(WaitPolicy policy);
  double timeout_seconds() const { return policy_.timeout_seconds; }
  // "rank 3", or as the policy names it.
  std::string Name(int rank) const;
  std::string self() const { return Name(rank_); }
  // As Transport's.
  std::string WaitInProgress(double at_least_seconds) const;

  // One wait, from its construction to its end; one per thread at a time. `what` outlives it.
  class Wait {
   public:
    Wait(WaitMonitor& monitor, const char* what, int peer);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;
    // To be called again and again while the wait goes on. Returns how long it has lasted; dies
    // after the policy's timeout.
    Clock::duration Look();

   private:
    friend class WaitMonitor;

    WaitMonitor& monitor_;
    const char* const what_;
    const int peer_;
    const ActivityStack& activity_;
    const Clock::time_point start_ = Clock::now();
  };

  // Dies unless `arrived` bytes are what was expected.
  void CheckSize(int64_t expected, int64_t arrived, const char* what, int peer) const;

 private:
  const int rank_;
  WaitPolicy policy_;               // changed under the lock, while only one thread waits
  std::vector<const Wait*> waits_;  // in progress, oldest first; under the lock
  mutable std::mutex mutex_;        // for WaitInProgress
};

}  // namespace twinstream
