// What the kernels of the keys' and values' gradients have in common: the queries that a block of
// keys meets, and how columns of scores become their gradients.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/cuda/attention.h"
#include "core/cuda/attention_tiles.h"
#include "core/cuda/kernel.h"
#include "core/cuda/tiles.h"
#include "gpu/primitives.h"

namespace twinstream::gpu {

// Some keys of one head: those first that the most queries see.
template <int kKeys>
struct KeyBlock {
  int head, first_key;

  // Blocks of a head.
  __host__ __device__ static int Count(const AttentionArguments& a) {
    return CeilingOfQuotient(a.key_end - a.key_begin, kKeys);
  }
  __device__ static KeyBlock Of(const AttentionArguments& a, int number) {
    const int blocks = Count(a);
    return {a.first_key_head + number / blocks, a.key_begin + number % blocks * kKeys};
  }
};

// The tiles of queries that a block of keys meets: of one query head after the other.
struct QuerySteps {
  int first_head, first_query, tiles, steps;

  template <int kQueries>
  __device__ static QuerySteps Of(const AttentionArguments& a, int key_head, int first_key) {
    const int first_query = a.form == ScoreForm::kTriangle ? first_key : a.query_begin;
    const int tiles = CeilingOfQuotient(a.query_end - first_query, kQueries);
    return {key_head * a.group, first_query, tiles, a.group * tiles};
  }
  __device__ int Head(int step) const { return first_head + step / tiles; }
  template <int kQueries>
  __device__ int Query(int step) const {
    return first_query + step % tiles * kQueries;
  }
};

// Tiles of those queries and of their dO, and two numbers of each query, in turn filled and read by
// the kThreads of a block.
template <int kQueries, int kD, int kThreads, class TileOfRows>
struct MetQueries {
  static constexpr int64_t kBytes = 4 * kQueries * kD * static_cast<int64_t>(sizeof(BFloat16)) +
                                    4 * kQueries * static_cast<int64_t>(sizeof(float));

  const AttentionArguments& a;
  QuerySteps steps;
  TilePairs<kQueries, kD, TileOfRows> pairs;  // kBytes from there on

  __device__ int Query(int step) const { return steps.Query<kQueries>(step); }
  // Starts to copy.
  __device__ void FillTiles(int step) const {
    const int head = steps.Head(step), query = Query(step);
    CopyRows<kQueries, kD, kThreads>(pairs.First(step), a.Rows(a.q, head), query, a.query_end, a.D);
    CopyRows<kQueries, kD, kThreads>(pairs.Second(step), a.TokenRows(a.dout, head), query,
                                     a.query_end, a.D);
    CommitCopies();
  }

  // kQueries times kLog2E lse, then as often delta.
  __device__ float* Statistics(int step) const {
    return reinterpret_cast<float*>(pairs.data + 4 * kQueries * kD) + step % 2 * 2 * kQueries;
  }
  __device__ const float* Deltas(int step) const { return Statistics(step) + kQueries; }
  // This thread's entry, 0 if it has none. A query that does not exist gets probabilities of 0.
  __device__ float LoadStatistic(int step) const {
    const int entry = ThisThread();
    if (entry >= 2 * kQueries) return 0;
    const int head = steps.Head(step), query = Query(step) + entry % kQueries;
    const bool is_lse = entry < kQueries;
    if (query >= a.query_end) return is_lse ? INFINITY : 0;
    return is_lse ? a.Lse(head, query) * kLog2E : a.Delta(head, query);
  }
  __device__ void StoreStatistic(int step, float value) const {
    if (ThisThread() < 2 * kQueries) Statistics(step)[ThisThread()] = value;
  }
};

// Of keys in rows and queries in columns, from first_key and first_query on: scores become
// probabilities, 0 where the query does not see the key. log2_lse: of each query.
template <int kRowTiles, int kQueryTiles>
__device__ void ColumnProbabilities(const AttentionArguments& a, int first_key, int first_query,
                                    const float* log2_lse, Sums<kRowTiles, kQueryTiles>& scores) {
  const int lane = Opaque(ThisLane()), group = lane / 4, pair = lane % 4;
  const float log2_scale = a.scale * kLog2E;
  const bool masked = a.form == ScoreForm::kTriangle && first_query < first_key + 16 * kRowTiles;
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    const FloatPair lse = *reinterpret_cast<const FloatPair*>(log2_lse + 8 * n + 2 * pair);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first_key + 16 * m + group + i / 2 * 8;
        const int query = first_query + 8 * n + 2 * pair + i % 2;
        const float p =
            FastExp2(scores[m][n][i] * log2_scale - (i % 2 == 0 ? lse.first : lse.second));
        scores[m][n][i] = masked && key > query ? 0 : p;
      }
    }
  }
}

// dprobabilities become the gradients of the scores. deltas: of each query, a column.
template <int kRowTiles, int kQueryTiles>
__device__ void ColumnScoreGradients(const Sums<kRowTiles, kQueryTiles>& probabilities,
                                     const float* deltas,
                                     Sums<kRowTiles, kQueryTiles>& dprobabilities) {
  const int pair = Opaque(ThisLane()) % 4;
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    const FloatPair delta = *reinterpret_cast<const FloatPair*>(deltas + 8 * n + 2 * pair);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& value = dprobabilities[m][n][i];
        value = probabilities[m][n][i] * (value - (i % 2 == 0 ? delta.first : delta.second));
      }
    }
  }
}

}  // namespace twinstream::gpu
