// The gradients of attention's keys and values on tensor cores, from the deltas that
// attention_query_gradient.cu has left: the scores' transpose, [keys, queries], whose registers are
// then the left operands of the gradients' products. One block sums over all queries of all query
// heads of its key head, in their order. 8 D FLOPs for every score.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/cuda/attention.h"
#include "core/cuda/attention_tiles.h"

namespace twinstream {
namespace gpu {
namespace {

// A block has the rows of some keys and values and meets queries and their dO, two tiles of each in
// turn. Of 256 columns it sums half: the gradients of all would not fit the registers.
template <int kD>
struct KeyTiles {
  static constexpr int kWarps = kD == 128 ? 8 : 4, kThreads = kWarps * kWarpLanes;
  static constexpr int kRowTiles = kD <= 64 ? 2 : 1;  // of 16 keys, of each warp
  static constexpr int kKeys = kWarps * kRowTiles * 16;
  static constexpr int kQueries = kD == 128 ? 64 : 32;
  static constexpr int kColumns = std::min(kD, 128);
  static constexpr int64_t kTileBytes =
      (2 * kKeys + 4 * kQueries) * kD * static_cast<int64_t>(sizeof(BFloat16));
  static constexpr int64_t kSharedBytes =
      kTileBytes + 4 * kQueries * static_cast<int64_t>(sizeof(float));
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

// Entry i of a tile's statistics: kQueries times kLog2E lse, then as often delta. A query that does
// not exist gets probabilities of 0.
template <int kQueries>
__device__ float StatisticOf(const AttentionArguments& a, int head, int first_query, int i) {
  const int query = first_query + i % kQueries;
  if (i < kQueries) return query < a.query_end ? a.Lse(head, query) * kLog2E : INFINITY;
  return query < a.query_end ? a.Delta(head, query) : 0;
}

// Of keys in rows and queries in columns, from first_key and first_query on: scores become
// probabilities, 0 where the query does not see the key. log2_lse: of each query.
template <int kRowTiles, int kQueryTiles>
__device__ void Probabilities(const AttentionArguments& a, int first_key, int first_query,
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

// What a block has: those keys of a head first that the most queries see.
template <int kD>
struct KeyBlock {
  static constexpr int kKeys = KeyTiles<kD>::kKeys, kColumns = KeyTiles<kD>::kColumns;
  static constexpr int kParts = kD / kColumns;  // of the columns

  int head, first_column, first_key;

  // Blocks of a head, each kParts times.
  __host__ __device__ static int Count(const AttentionArguments& a) {
    return CeilingOfQuotient(a.key_end - a.key_begin, kKeys);
  }
  __device__ static KeyBlock Of(const AttentionArguments& a) {
    const int part = static_cast<int>(blockIdx.x) % kParts;
    const int block = static_cast<int>(blockIdx.x) / kParts, blocks = Count(a);
    return {a.first_key_head + block / blocks, part * kColumns,
            a.key_begin + block % blocks * kKeys};
  }
};

// One block for kKeys keys of one head and kColumns columns of their gradients.
template <int kD>
__global__ void __launch_bounds__(KeyTiles<kD>::kThreads, kD <= 64 ? 2 : 1)
    AttentionKeyGradientKernel(AttentionArguments a) {
  using Tiles = KeyTiles<kD>;
  constexpr int kRowTiles = Tiles::kRowTiles, kQueries = Tiles::kQueries;
  const auto block = KeyBlock<kD>::Of(a);
  const int warp_row = ThisWarp() * kRowTiles * 16, warp_key = block.first_key + warp_row;
  const QuerySteps steps = QuerySteps::Of<kQueries>(a, block.head, block.first_key);

  const Tile<kD> keys{SharedMemory<BFloat16>()};
  const Tile<kD> values{keys.data + Tiles::kKeys * kD};
  const TilePairs<kQueries, kD> pairs{values.data + Tiles::kKeys * kD};  // queries and dO
  const auto statistics_of = [&](int step) {
    return SharedMemory<float>() + Tiles::kTileBytes / 4 + step % 2 * 2 * kQueries;
  };
  const auto copy = [&](int step) {
    const int head = steps.Head(step);
    const int query = steps.Query<kQueries>(step);
    CopyRows<kQueries, kD, Tiles::kThreads>(pairs.First(step), a.Rows(a.q, head), query,
                                            a.query_end, a.D);
    CopyRows<kQueries, kD, Tiles::kThreads>(pairs.Second(step), a.TokenRows(a.dout, head), query,
                                            a.query_end, a.D);
    CommitCopies();
  };
  const bool has_statistic = ThisThread() < 2 * kQueries;
  const auto statistic = [&](int step) {
    return StatisticOf<kQueries>(a, steps.Head(step), steps.Query<kQueries>(step), ThisThread());
  };
  CopyRows<Tiles::kKeys, kD, Tiles::kThreads>(keys, a.Rows(a.k, block.head), block.first_key,
                                              a.key_end, a.D);
  CopyRows<Tiles::kKeys, kD, Tiles::kThreads>(values, a.Rows(a.v, block.head), block.first_key,
                                              a.key_end, a.D);
  copy(0);
  if (has_statistic) statistics_of(0)[ThisThread()] = statistic(0);

  Sums<kRowTiles, Tiles::kColumns / 8> dk, dv;
  SetToZero(dk);
  SetToZero(dv);
  for (int step = 0; step < steps.steps; ++step) {
    WaitForCopies<0>();
    SyncBlock();  // this step's tiles are there, those of the one before are done with
    const bool goes_on = step + 1 < steps.steps;
    if (goes_on) copy(step + 1);
    const float next_statistic = goes_on && has_statistic ? statistic(step + 1) : 0;
    Weights<kRowTiles, kQueries / 16> weights;
    Sums<kRowTiles, kQueries / 8> p, ds;
    SetToZero(p);
    AddRowProducts(p, keys, warp_row, pairs.First(step));
    Probabilities(a, warp_key, steps.Query<kQueries>(step), statistics_of(step), p);
    RoundToWeights(weights, p);
    AddWeightedRows(dv, weights, pairs.Second(step), block.first_column);
    SetToZero(ds);
    AddRowProducts(ds, values, warp_row, pairs.Second(step));
    ColumnScoreGradients(p, statistics_of(step) + kQueries, ds);
    RoundToWeights(weights, ds);
    AddWeightedRows(dk, weights, pairs.First(step), block.first_column);
    if (goes_on && has_statistic) statistics_of(step + 1)[ThisThread()] = next_statistic;
  }
  WriteGradient(a, a.dk, block.head, warp_key, a.key_end, block.first_column, dk, a.scale);
  WriteGradient(a, a.dv, block.head, warp_key, a.key_end, block.first_column, dv, 1);
}

template <int kD>
void LaunchKeyGradient(const AttentionArguments& a, int64_t key_heads, Stream stream) {
  using Tiles = KeyTiles<kD>;
  Launch(
      "AttentionKeyGradient", AttentionKeyGradientKernel<kD>,
      {.blocks = static_cast<unsigned>(KeyBlock<kD>::Count(a) * key_heads * KeyBlock<kD>::kParts),
       .threads = Tiles::kThreads,
       .shared_bytes = Tiles::kSharedBytes},
      stream, a);
}

}  // namespace
}  // namespace gpu

void LaunchTensorKeyGradient(const gpu::AttentionArguments& a, int64_t key_heads,
                             gpu::Stream stream) {
  gpu::WithTileColumns(a.D, [&]<int kD>(std::integral_constant<int, kD>) {
    gpu::LaunchKeyGradient<kD>(a, key_heads, stream);
  });
}

}  // namespace twinstream
