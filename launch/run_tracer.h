// RunTracer: observes a run's steps: times of all of them for the summary, and every span of the
// steps that metrics.trace_steps names, written as <metrics.directory>/trace.json. On a device with
// memory of its own, which works on while the host goes ahead, only the traced steps have times:
// their spans wait for it.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "launch/trainer.h"
#include "parallel/span_totals.h"
#include "parallel/trace.h"
#include "proto/trace_steps.h"

namespace twinstream {

class RunTracer {
 public:
  // For updates `first` .. `last` of the trainer's job. Takes the memory of the trace. `trainer`
  // outlives this.
  RunTracer(Trainer& trainer, int64_t first, int64_t last);
  ~RunTracer();
  RunTracer(const RunTracer&) = delete;
  RunTracer& operator=(const RunTracer&) = delete;

  // Around every update, collective. After the last traced one, EndStep writes the trace; the
  // directory exists. The same status on every rank.
  void BeginStep(int64_t step);
  absl::Status EndStep(int64_t step);
  // Writes the trace of a run that ends before the last step that was to be traced. Collective.
  absl::Status Finish();

  // Of all updates so far that have times; nothing if none has. Collective.
  std::optional<TimeShares> Shares() const;

 private:
  absl::Status Write();

  Trainer& trainer_;
  const TraceSteps steps_;
  const int64_t last_;
  SpanTotals totals_;
  bool has_times_ = false;
  std::optional<TraceRecorder> recorder_;  // absent when nothing is, or is still, to be traced
};

}  // namespace twinstream
