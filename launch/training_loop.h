// TrainingLoop: update after update, with what a person asked to be logged, evaluated and saved
// along the way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/file.h"
#include "core/op_profile.h"
#include "core/token_dataset.h"
#include "launch/metrics.h"
#include "launch/profile_report.h"
#include "launch/progress.h"
#include "launch/run_tracer.h"
#include "launch/runtime.h"
#include "launch/trainer.h"

namespace twinstream {

// Update `update` (from 1) of the trainer's job, on its samples of `data` and with its learning
// rate. Dies, naming file and token, where a sample has a token outside the vocabulary.
StepResult TrainUpdate(Trainer& trainer, const TokenDataset& data, int64_t update,
                       bool stop_requested);

struct TrainingData {
  TokenDataset train;
  std::optional<TokenDataset> validation;  // absent: no evaluation
};

// Where a run's numbers go.
struct TrainingOutputs {
  OpProfile& profile;                // filled by a profiled device; without one it stays empty
  Ceilings ceilings;                 // of that device
  std::vector<FileLock> locks = {};  // rank 0's, of the directories that the run writes into
  // Absent except on rank 0.
  std::optional<MetricsWriter> metrics;
  std::optional<Progress> progress;
};

class TrainingLoop {
 public:
  // peak_flops: FLOP/s of all ranks together. All arguments outlive the loop.
  TrainingLoop(Trainer& trainer, Runtime& runtime, Device& device, const TrainingData& data,
               TrainingOutputs& outputs, double peak_flops);

  // Updates first_update .. train.steps. Cancelled when a signal stopped it after saving; Internal
  // when a loss or gradient norm is not finite. Where a step's metrics or trace cannot be written
  // it is saved before their error returns. The message also says of a profile that it could not be
  // written. Collective; the same status on every rank.
  absl::Status Run(int64_t first_update);

 private:
  absl::Status RunUpdates(int64_t first_update, RunTracer& tracer);
  int64_t TokensAfter(int64_t updates) const;  // trained on
  absl::Status LogIfDue(const StepResult& result, int64_t step, double seconds);
  absl::Status EvaluateIfDue(int64_t step);
  absl::Status Save(int64_t step);
  absl::Status ReportProfile();
  bool IsLast(int64_t step) const;

  Trainer& trainer_;
  Runtime& runtime_;
  Device& device_;
  const TrainingData& data_;
  TrainingOutputs& outputs_;
  const double peak_flops_;
  std::optional<double> validation_loss_;  // the latest
};

}  // namespace twinstream
