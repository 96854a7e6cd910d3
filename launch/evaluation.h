// Validation loss: the mean cross-entropy over validation windows, each taken once, in order.
#pragma once

#include <cstdint>

#include "core/token_dataset.h"
#include "launch/trainer.h"

namespace twinstream {

struct Evaluation {
  double loss = 0;     // nats per token
  int64_t tokens = 0;  // targets that it is the mean of
};

// The first `batches` global batches of windows, or all when there are fewer (the last one padded).
// Collective; the same on every rank and, up to rounding, on every layout.
Evaluation Evaluate(Trainer& trainer, const TokenDataset& validation, int64_t batches);

// Global batches that hold all windows.
int64_t AllBatches(const Trainer& trainer, const TokenDataset& validation);

}  // namespace twinstream
