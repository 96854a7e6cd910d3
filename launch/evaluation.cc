#include "launch/evaluation.h"

#include <algorithm>

namespace twinstream {

int64_t AllBatches(const Trainer& trainer, const TokenDataset& validation) {
  const int64_t batch = trainer.batch_shape().global_batch();
  return (validation.windows() + batch - 1) / batch;
}

Evaluation Evaluate(Trainer& trainer, const TokenDataset& validation, int64_t batches) {
  const BatchLoader loader(validation, trainer.batch_shape());
  HostBatch& batch = trainer.batch();
  Evaluation result;
  double sum = 0;
  for (int64_t b = 0; b < std::min(batches, AllBatches(trainer, validation)); ++b) {
    const int64_t first = b * trainer.batch_shape().global_batch();
    const absl::StatusOr<int64_t> targets =
        loader.LoadEvaluation(first, absl::MakeSpan(batch.tokens), absl::MakeSpan(batch.targets));
    Check(targets.ok(), "%s", targets.status().message());
    result.tokens += *targets;
    sum += trainer.EvaluationLoss();
  }
  result.loss = sum / static_cast<double>(result.tokens);
  return result;
}

}  // namespace twinstream
