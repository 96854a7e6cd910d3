// The gradient of attention's queries on tensor cores: FlashAttention-2's backward (arXiv
// 2307.08691), but for the gradients of keys and values, which have a kernel of their own
// (attention_key_gradient.cu): nobody adds to another block's results, so that sums have one order.
// Both compute the probabilities anew from the saved log-sum-exp.
// Floor of both: 10 D FLOPs of tensor cores for every score that the mask leaves; the second
// computation of scores and their gradients makes it 14 D, 6 D of them here.
#include <cstdint>

#include "core/cuda/attention.h"
#include "core/cuda/attention_tiles.h"

namespace twinstream {
namespace gpu {
namespace {

// A block has the rows of some queries and meets keys and values, two tiles of each in turn.
template <int kD>
struct QueryTiles {
  static constexpr int kWarps = 4, kThreads = kWarps * kWarpLanes;
  static constexpr int kRowTiles = kD <= 128 ? 2 : 1;  // of 16 queries, of each warp
  static constexpr int kQueries = kWarps * kRowTiles * 16;
  static constexpr int kKeys = kD <= 64 ? 64 : 32;
  static constexpr int64_t kSharedBytes =
      (2 * kQueries + 4 * kKeys) * kD * static_cast<int64_t>(sizeof(BFloat16));
};

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

// dscores, in: gradients of the probabilities, out: of the scores. Masked scores are -inf.
template <int kRowTiles, int kKeyTiles>
__device__ void ScoreGradients(const Sums<kRowTiles, kKeyTiles>& scores, float log2_scale,
                               const QueryStatistics<kRowTiles>& statistics,
                               Sums<kRowTiles, kKeyTiles>& dscores) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = FastExp2(scores[m][n][i] * log2_scale - statistics.log2_lse[m][i / 2]);
        dscores[m][n][i] = p * (dscores[m][n][i] - statistics.delta[m][i / 2]);
      }
    }
  }
}

// One block for a QueryBlock.
template <int kD>
__global__ void __launch_bounds__(QueryTiles<kD>::kThreads, kD <= 128 ? 2 : 1)
    AttentionQueryGradientKernel(AttentionArguments a) {
  using Tiles = QueryTiles<kD>;
  constexpr int kRowTiles = Tiles::kRowTiles, kKeys = Tiles::kKeys;
  const auto block = QueryBlock<Tiles::kQueries>::Of(a, a.first_key_head * a.group);
  const int head = block.head, block_query = block.first_query, key_end = block.key_end;
  const int warp_row = ThisWarp() * kRowTiles * 16, warp_query = block_query + warp_row;

  const Tile<kD> queries{SharedMemory<BFloat16>()};
  const Tile<kD> douts{queries.data + Tiles::kQueries * kD};
  const TilePairs<kKeys, kD> pairs{douts.data + Tiles::kQueries * kD};  // keys and values
  const StridedRows key_rows = a.Rows(a.k, head / a.group),
                    value_rows = a.Rows(a.v, head / a.group);
  const auto copy = [&](int turn, int key) {
    CopyRows<kKeys, kD, Tiles::kThreads>(pairs.First(turn), key_rows, key, key_end, a.D);
    CopyRows<kKeys, kD, Tiles::kThreads>(pairs.Second(turn), value_rows, key, key_end, a.D);
    CommitCopies();
  };
  CopyRows<Tiles::kQueries, kD, Tiles::kThreads>(queries, a.Rows(a.q, head), block_query,
                                                 a.query_end, a.D);
  CopyRows<Tiles::kQueries, kD, Tiles::kThreads>(douts, a.TokenRows(a.dout, head), block_query,
                                                 a.query_end, a.D);
  copy(0, a.key_begin);
  const auto statistics = StatisticsOf<kRowTiles>(a, head, warp_query);
  KeepDeltas(a, head, warp_query, statistics);

  Sums<kRowTiles, kD / 8> dq;
  SetToZero(dq);
  int turn = 0;
  for (int key = a.key_begin; key < key_end; key += kKeys, turn = 1 - turn) {
    WaitForCopies<0>();
    SyncBlock();  // this tile is there, the other one is done with
    if (key + kKeys < key_end) copy(1 - turn, key + kKeys);
    Sums<kRowTiles, kKeys / 8> scores, dscores;
    SetToZero(scores);
    SetToZero(dscores);
    AddRowProducts(scores, queries, warp_row, pairs.First(turn));
    AddRowProducts(dscores, douts, warp_row, pairs.Second(turn));
    if (key + kKeys > a.KeyLimit(warp_query)) Mask(a, warp_query, key, scores);
    ScoreGradients(scores, a.scale * kLog2E, statistics, dscores);
    Weights<kRowTiles, kKeys / 16> weights;
    RoundToWeights(weights, dscores);
    AddWeightedRows(dq, weights, pairs.First(turn), 0);
  }
  WriteGradient(a, a.dq, head, warp_query, a.query_end, 0, dq, a.scale);
}

template <int kD>
void LaunchQueryGradient(const AttentionArguments& a, int64_t key_heads, Stream stream) {
  using Tiles = QueryTiles<kD>;
  Launch(
      "AttentionQueryGradient", AttentionQueryGradientKernel<kD>,
      {.blocks = static_cast<unsigned>(QueryBlock<Tiles::kQueries>::Count(a) * key_heads * a.group),
       .threads = Tiles::kThreads,
       .shared_bytes = Tiles::kSharedBytes},
      stream, a);
}

}  // namespace
}  // namespace gpu

void LaunchTensorQueryGradient(const gpu::AttentionArguments& a, int64_t key_heads,
                               gpu::Stream stream) {
  gpu::WithTileColumns(a.D, [&]<int kD>(std::integral_constant<int, kD>) {
    gpu::LaunchQueryGradient<kD>(a, key_heads, stream);
  });
}

}  // namespace twinstream
