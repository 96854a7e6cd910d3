#include "launch/run_tracer.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launch/metrics.h"
#include "parallel/collectives.h"

namespace twinstream {

RunTracer::RunTracer(Trainer& trainer, int64_t first, int64_t last)
    : trainer_(trainer),
      steps_(*TraceSteps::Parse(trainer.job().metrics().trace_steps())),
      last_(last) {
  const int64_t traced = steps_.CountWithin(first, last);
  if (traced > 0) {
    recorder_.emplace(traced * trainer.SpansPerStep(), trainer.device(), totals_);
  }
}

RunTracer::~RunTracer() { trainer_.Observe(nullptr); }

void RunTracer::BeginStep(int64_t step) {
  const bool traced = recorder_.has_value() && steps_.Contains(step);
  if (!traced && !trainer_.device().host_memory()) return;
  has_times_ = true;
  if (!traced) return trainer_.Observe(&totals_);
  trainer_.device().Synchronize();  // what is left of earlier steps is not this one's
  if (recorder_->empty()) recorder_->AlignClocks(trainer_.grid().world());
  trainer_.Observe(&*recorder_);
}

absl::Status RunTracer::EndStep(int64_t step) {
  trainer_.Observe(nullptr);
  return steps_.CountWithin(step + 1, last_) == 0 ? Finish() : absl::OkStatus();
}

absl::Status RunTracer::Finish() {
  if (!recorder_ || recorder_->empty()) return absl::OkStatus();
  const absl::Status status = Write();
  recorder_.reset();
  return status;
}

absl::Status RunTracer::Write() {
  Communicator& world = trainer_.grid().world();
  const std::string name =
      absl::StrFormat("rank %d (%s)", world.rank(), trainer_.grid().shape().PlaceOf(world.rank()));
  const std::vector<std::string> tracks =
      GatherTexts(world, recorder_->ChromeEvents(world.rank(), name));
  absl::Status written;
  if (world.rank() == 0) {
    written = WriteMetricsFile(trainer_.job().metrics(), "trace.json",
                               ChromeTrace(tracks, trainer_.job().name()));
  }
  return AgreeOnStatus(world, written);
}

std::optional<TimeShares> RunTracer::Shares() const {
  if (!has_times_) return std::nullopt;
  return SharesOf(totals_, trainer_.grid().world());
}

}  // namespace twinstream
