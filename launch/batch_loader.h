// BatchLoader: the micro-batches of one data rank, straight from the token files. No state, no
// reading ahead: a batch is a function of its first sample.
//
// A global batch is D * M * B consecutive samples, D data ranks of M micro-batches of B sequences.
// Micro-batch m of data rank r takes samples first + (m * D + r) * B and the B - 1 after it. The
// ranks' samples together are those of the batch, once each, whatever D, M and B. Context ranks
// take the same samples, and of each sequence the T tokens of their shard
// (parallel/sequence_shard.h), with the targets of these.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/token_dataset.h"

namespace twinstream {

// This rank's part of a global batch.
struct BatchShape {
  int64_t microbatches = 1;  // M
  int64_t microbatch = 1;    // B
  int64_t data_ranks = 1;    // D
  int64_t data_rank = 0;
  int context_ranks = 1;
  int context_rank = 0;

  int64_t global_batch() const { return data_ranks * microbatches * microbatch; }
};

class BatchLoader {
 public:
  // `dataset` outlives the loader.
  BatchLoader(const TokenDataset& dataset, const BatchShape& shape);

  // The batch that begins at global sample `first`: step s (from 1) takes (s - 1) * global_batch.
  // tokens, targets: [M, B * T]. DataLoss as TokenDataset::Read.
  absl::Status Load(int64_t first, absl::Span<int32_t> tokens, absl::Span<int32_t> targets) const;

  // The same for evaluation: one pass over the windows of a sequential dataset, batch b from window
  // b * global_batch. Places beyond the last window are padding: tokens 0, targets -1 (ignored by
  // the loss). Returns the number of real targets of the whole batch, over all data ranks.
  absl::StatusOr<int64_t> LoadEvaluation(int64_t first, absl::Span<int32_t> tokens,
                                         absl::Span<int32_t> targets) const;

 private:
  absl::Status LoadBelow(int64_t end, int64_t first, absl::Span<int32_t> tokens,
                         absl::Span<int32_t> targets) const;

  const TokenDataset& dataset_;
  BatchShape shape_;
};

}  // namespace twinstream
