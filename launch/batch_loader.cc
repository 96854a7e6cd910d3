#include "launch/batch_loader.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/check.h"
#include "parallel/sequence_shard.h"

namespace twinstream {

BatchLoader::BatchLoader(const TokenDataset& dataset, const BatchShape& shape)
    : dataset_(dataset), shape_(shape) {
  Check(shape.microbatches >= 1 && shape.microbatch >= 1 && shape.data_rank >= 0 &&
            shape.data_rank < shape.data_ranks,
        "data rank %d of %d, %d micro-batches of %d", shape.data_rank, shape.data_ranks,
        shape.microbatches, shape.microbatch);
}

absl::Status BatchLoader::Load(int64_t first, absl::Span<int32_t> tokens,
                               absl::Span<int32_t> targets) const {
  return LoadBelow(std::numeric_limits<int64_t>::max(), first, tokens, targets);
}

absl::StatusOr<int64_t> BatchLoader::LoadEvaluation(int64_t first, absl::Span<int32_t> tokens,
                                                    absl::Span<int32_t> targets) const {
  Check(dataset_.order() == TokenOrder::kSequential, "evaluation of a shuffled dataset");
  const int64_t windows = dataset_.windows();
  if (absl::Status s = LoadBelow(windows, first, tokens, targets); !s.ok()) return s;
  return std::clamp<int64_t>(windows - first, 0, shape_.global_batch()) * dataset_.sequence();
}

// Samples from `end` on are padding.
absl::Status BatchLoader::LoadBelow(int64_t end, int64_t first, absl::Span<int32_t> tokens,
                                    absl::Span<int32_t> targets) const {
  const SequenceShard shard = {
      .sequence = dataset_.sequence(), .ranks = shape_.context_ranks, .rank = shape_.context_rank};
  const int64_t M = shape_.microbatches, B = shape_.microbatch, T = shard.tokens();
  Check(static_cast<int64_t>(tokens.size()) == M * B * T && targets.size() == tokens.size(),
        "room for %d tokens and %d targets, not [%d, %d * %d]", tokens.size(), targets.size(), M, B,
        T);
  std::vector<int32_t> window(dataset_.sequence() + 1);
  for (int64_t row = 0; row < M * B; ++row) {
    const int64_t m = row / B, b = row % B;
    const int64_t sample = first + (m * shape_.data_ranks + shape_.data_rank) * B + b;
    const absl::Span<int32_t> row_tokens = tokens.subspan(row * T, T);
    const absl::Span<int32_t> row_targets = targets.subspan(row * T, T);
    if (sample >= end) {
      std::fill(row_tokens.begin(), row_tokens.end(), 0);
      std::fill(row_targets.begin(), row_targets.end(), -1);
      continue;
    }
    if (absl::Status s = dataset_.Read(sample, absl::MakeSpan(window)); !s.ok()) return s;
    for (int64_t t = 0; t < T; ++t) {
      row_tokens[t] = window[shard.Position(t)];
      row_targets[t] = window[shard.Position(t) + 1];
    }
  }
  return absl::OkStatus();
}

}  // namespace twinstream
