// TrainingLoop: step after step, with what a person asked to be logged, evaluated and saved along
// the way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "core/token_dataset.h"
#include "launch/batch_loader.h"
#include "launch/metrics.h"
#include "launch/progress.h"
#include "launch/runtime.h"
#include "launch/trainer.h"

namespace twinstream {

class TrainingLoop {
 public:
  // validation may be null. metrics: rank 0's, null elsewhere. peak_flops: FLOP/s of all ranks
  // together. All arguments outlive the loop.
  TrainingLoop(Trainer& trainer, Runtime& runtime, Device& device, const TokenDataset& train,
               const TokenDataset* validation, MetricsWriter* metrics, Progress* progress,
               double peak_flops);

  // Updates first_update .. train.steps; `tokens` were trained on before. Cancelled when a signal
  // stopped it after saving; Internal when a loss or gradient norm is not finite. Collective; the
  // same status on every rank.
  absl::Status Run(int64_t first_update, int64_t tokens);

 private:
  StepMetrics MetricsOf(const StepResult& result, int64_t step, double seconds);
  absl::Status Log(const StepMetrics& metrics);
  absl::Status EvaluateAndLog(int64_t step);
  absl::Status Save(int64_t step);
  absl::Status AgreeOnWriting(const absl::Status& rank0);

  Trainer& trainer_;
  Runtime& runtime_;
  Device& device_;
  const TokenDataset& train_;
  const TokenDataset* validation_;
  MetricsWriter* metrics_;
  Progress* progress_;
  const double peak_flops_;
  int64_t tokens_ = 0;
  std::optional<double> validation_loss_;
};

}  // namespace twinstream
