// The gradient of attention's queries on tensor cores: FlashAttention-2's backward (arXiv
// 2307.08691), but for the gradients of keys and values, which have a kernel of their own
// (attention_key_gradient.cu): nobody adds to another block's results, so that sums have one order.
// Both compute the probabilities anew from the saved log-sum-exp.
// Floor of both: 10 D FLOPs of tensor cores for every score that the mask leaves; the second
// computation of scores and their gradients makes it 14 D, 6 D of them here.
#include <cstdint>

#include "core/cuda/attention.h"
#include "core/cuda/attention_query_gradient.h"
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
    RowProbabilities(a, statistics, scores);
    RowScoreGradients(scores, statistics, dscores);
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
