// What the kernels of the queries' gradient have in common: how rows of scores become their
// gradients.
#pragma once

#include <cstdint>

#include "core/cuda/attention.h"
#include "core/cuda/kernel.h"
#include "core/cuda/tiles.h"
#include "gpu/primitives.h"

namespace twinstream::gpu {

// Of a warp's queries, row g + 8 half of each row tile: what turns a score into its gradient.
template <int kRowTiles>
struct QueryStatistics {
  float log2_lse[kRowTiles][2];
  float delta[kRowTiles][2];  // rowsum(dO . O)
};

// Of the queries from first_query on. The four lanes of a row share its sum.
template <int kRowTiles>
__device__ QueryStatistics<kRowTiles> StatisticsOf(const AttentionArguments& a, int head,
                                                   int first_query) {
  const int group = ThisLane() / 4, pair = ThisLane() % 4;
  QueryStatistics<kRowTiles> statistics;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query + 16 * m + group + 8 * half;
      const bool exists = query < a.query_end;
      float sum = 0;
      for (int column = 8 * pair; exists && column < a.D; column += 32) {
        const int64_t place = a.TokenRow(head, query) + column;
        const Pack<BFloat16> out = a.out.LoadEight(place), dout = a.dout.LoadEight(place);
        for (int i = 0; i < 8; ++i) sum += out.values[i] * dout.values[i];
      }
      sum += ShuffleXor(sum, 1);
      sum += ShuffleXor(sum, 2);
      statistics.delta[m][half] = sum;
      statistics.log2_lse[m][half] = exists ? a.Lse(head, query) * kLog2E : 0;
    }
  }
  return statistics;
}

// Writes the warp's deltas for the kernel of keys and values.
template <int kRowTiles>
__device__ void KeepDeltas(const AttentionArguments& a, int head, int first_query,
                           const QueryStatistics<kRowTiles>& statistics) {
  if (ThisLane() % 4 != 0) return;
  for (int m = 0; m < kRowTiles; ++m) {
    for (int half = 0; half < 2; ++half) {
      const int query = first_query + 16 * m + ThisLane() / 4 + 8 * half;
      if (query < a.query_end) a.Delta(head, query) = statistics.delta[m][half];
    }
  }
}

// Scores become probabilities. Masked scores are -inf.
template <int kRowTiles, int kKeyTiles>
__device__ void RowProbabilities(const AttentionArguments& a,
                                 const QueryStatistics<kRowTiles>& statistics,
                                 Sums<kRowTiles, kKeyTiles>& scores) {
  const float log2_scale = a.scale * kLog2E;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& value = scores[m][n][i];
        value = FastExp2(value * log2_scale - statistics.log2_lse[m][i / 2]);
      }
    }
  }
}

// dprobabilities become the gradients of the scores.
template <int kRowTiles, int kKeyTiles>
__device__ void RowScoreGradients(const Sums<kRowTiles, kKeyTiles>& probabilities,
                                  const QueryStatistics<kRowTiles>& statistics,
                                  Sums<kRowTiles, kKeyTiles>& dprobabilities) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& value = dprobabilities[m][n][i];
        value = probabilities[m][n][i] * (value - statistics.delta[m][i / 2]);
      }
    }
  }
}

}  // namespace twinstream::gpu
