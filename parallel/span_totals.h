// SpanTotals: how long this rank has spent on each kind of span, and what all ranks' totals say of
// a run. Costs two looks at the clock per span and no memory.
#pragma once

#include <array>
#include <chrono>

#include "parallel/communicator.h"
#include "parallel/span.h"

namespace twinstream {

class SpanTotals final : public SpanObserver {
 public:
  void Begin(const Span& span) override;
  void End(const Span& span) override;

  double seconds(SpanKind kind) const;

 private:
  using Clock = std::chrono::steady_clock;
  std::array<Clock::time_point, kSpanKinds> begin_ = {};
  std::array<Clock::duration, kSpanKinds> total_ = {};
};

struct TimeShares {
  // Of (pipeline time x ranks), not computing; a rank's own waiting for reductions and gathers
  // aside. Pipeline time is that of the rank that needs most. Comparable with
  // ScheduleReport::bubble.
  double bubble = 0;
  // Of (step time x ranks), in messages between stages, gradient reduction and parameter gather,
  // waiting included. The sums of tensor parallelism inside a stage count as computing.
  double communication = 0;
};
// Collective; the same on every rank.
TimeShares SharesOf(const SpanTotals& totals, Communicator& world);

}  // namespace twinstream
