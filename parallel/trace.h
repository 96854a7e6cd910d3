// Trace: the spans of some steps of one rank, recorded in memory, and all ranks' as Chrome trace
// JSON, which Perfetto (ui.perfetto.dev) shows as one track per rank.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"
#include "parallel/communicator.h"
#include "parallel/span.h"

namespace twinstream {

class TraceRecorder final : public SpanObserver {
 public:
  // Takes memory for `most_spans` spans; dies of more. Tells `next` of all of them, too. A span
  // ends once the device, which outlives this, has done all that it was given: what it is given
  // next does not follow at once, so a recorded step takes longer than others.
  TraceRecorder(int64_t most_spans, Device& device, SpanObserver& next);

  // Collective, before the first span: time 0 of every rank is when it leaves a barrier, so ranks
  // agree about the time as far as they leave together: to some microseconds where each has a
  // core, to a time slice of the scheduler where they share cores.
  void AlignClocks(Communicator& world);

  void Begin(const Span& span) override;
  void End(const Span& span) override;

  bool empty() const { return records_.empty(); }
  // This rank's track, called `name` (no control characters), as members of "traceEvents": complete
  // events in the order in which they ended, named as in "F s1 m3" (stage 1, micro-batch 3), the
  // kind as category.
  std::string ChromeEvents(int rank, absl::string_view name) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Record {
    Span span;
    Clock::time_point begin, end;
  };

  Device& device_;
  SpanObserver& next_;
  const size_t most_spans_;
  Clock::time_point origin_ = Clock::now();
  std::array<Clock::time_point, kSpanKinds> begin_ = {};
  std::vector<Record> records_;
};

// The whole file. tracks: ChromeEvents of every rank; process: what Perfetto calls all of them
// (no control characters).
std::string ChromeTrace(const std::vector<std::string>& tracks, absl::string_view process);

}  // namespace twinstream
