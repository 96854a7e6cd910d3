// WaitMonitor: what every transport does about a wait that lasts: dies with the names of who waits
// for whom when it is too long, and says so once when the process was told to end meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "parallel/transport.h"

namespace twinstream {

class WaitMonitor {
 public:
  using Clock = std::chrono::steady_clock;

  // `rank`: who waits, until a policy names it better.
  explicit WaitMonitor(int rank);
  void SetPolicy(WaitPolicy policy);
  const std::string& self() const { return policy_.self; }

  // One wait, from its construction on. `what` outlives it.
  class Wait {
   public:
    Wait(WaitMonitor& monitor, const char* what, int peer);
    // To be called at least every 0.1 s while the wait goes on. Returns how long it has lasted;
    // dies after the policy's timeout.
    Clock::duration Look();

   private:
    void AskWhetherToldToEnd(Clock::time_point now);

    WaitMonitor& monitor_;
    const char* const what_;
    const int peer_;
    const Clock::time_point start_ = Clock::now();
    Clock::time_point next_question_;
    std::optional<Clock::time_point> told_;
  };

  // Dies unless `arrived` bytes are what was expected.
  void CheckSize(int64_t expected, int64_t arrived, const char* what, int peer) const;

 private:
  WaitPolicy policy_;
  bool has_spoken_ = false;  // the line about being told to end comes once per process
};

}  // namespace twinstream
