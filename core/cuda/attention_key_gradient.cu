// The gradients of attention's keys and values on tensor cores, from the deltas that
// attention_query_gradient.cu has left: the scores' transpose, [keys, queries], whose registers are
// then the left operands of the gradients' products. One block sums over all queries of all query
// heads of its key head, in their order. 8 D FLOPs for every score.
#include <algorithm>
#include <cstdint>

#include "core/cuda/attention.h"
#include "core/cuda/attention_key_gradient.h"
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
  static constexpr int kParts = kD / kColumns;  // blocks for the same keys
  using Queries = MetQueries<kQueries, kD, kThreads, Tile<kD>>;
  static constexpr int64_t kSharedBytes =
      2 * kKeys * kD * static_cast<int64_t>(sizeof(BFloat16)) + Queries::kBytes;
};

// One block for a KeyBlock and kColumns columns of its gradients.
template <int kD>
__global__ void __launch_bounds__(KeyTiles<kD>::kThreads, kD <= 64 ? 2 : 1)
    AttentionKeyGradientKernel(AttentionArguments a) {
  using Tiles = KeyTiles<kD>;
  constexpr int kRowTiles = Tiles::kRowTiles, kQueries = Tiles::kQueries;
  const int number = static_cast<int>(blockIdx.x);
  const auto block = KeyBlock<Tiles::kKeys>::Of(a, number / Tiles::kParts);
  const int first_column = number % Tiles::kParts * Tiles::kColumns;
  const int warp_row = ThisWarp() * kRowTiles * 16, warp_key = block.first_key + warp_row;

  const Tile<kD> keys{SharedMemory<BFloat16>()};
  const Tile<kD> values{keys.data + Tiles::kKeys * kD};
  const typename Tiles::Queries queries{a,
                                        QuerySteps::Of<kQueries>(a, block.head, block.first_key),
                                        {values.data + Tiles::kKeys * kD}};
  CopyRows<Tiles::kKeys, kD, Tiles::kThreads>(keys, a.Rows(a.k, block.head), block.first_key,
                                              a.key_end, a.D);
  CopyRows<Tiles::kKeys, kD, Tiles::kThreads>(values, a.Rows(a.v, block.head), block.first_key,
                                              a.key_end, a.D);
  queries.FillTiles(0);
  queries.StoreStatistic(0, queries.LoadStatistic(0));

  Sums<kRowTiles, Tiles::kColumns / 8> dk, dv;
  SetToZero(dk);
  SetToZero(dv);
  for (int step = 0; step < queries.steps.steps; ++step) {
    WaitForCopies<0>();
    SyncBlock();  // this step's tiles are there, those of the one before are done with
    const bool goes_on = step + 1 < queries.steps.steps;
    if (goes_on) queries.FillTiles(step + 1);
    const float next_statistic = goes_on ? queries.LoadStatistic(step + 1) : 0;
    const Tile<kD> query_tile = queries.pairs.First(step), dout_tile = queries.pairs.Second(step);
    Weights<kRowTiles, kQueries / 16> weights;
    Sums<kRowTiles, kQueries / 8> p, ds;
    SetToZero(p);
    AddRowProducts(p, keys, warp_row, query_tile);
    ColumnProbabilities(a, warp_key, queries.Query(step), queries.Statistics(step), p);
    RoundToWeights(weights, p);
    AddWeightedRows(dv, weights, dout_tile, first_column);
    SetToZero(ds);
    AddRowProducts(ds, values, warp_row, dout_tile);
    ColumnScoreGradients(p, queries.Deltas(step), ds);
    RoundToWeights(weights, ds);
    AddWeightedRows(dk, weights, query_tile, first_column);
    if (goes_on) queries.StoreStatistic(step + 1, next_statistic);
  }
  WriteGradient(a, a.dk, block.head, warp_key, a.key_end, first_column, dk, a.scale);
  WriteGradient(a, a.dv, block.head, warp_key, a.key_end, first_column, dv, 1);
}

template <int kD>
void LaunchKeyGradient(const AttentionArguments& a, int64_t key_heads, Stream stream) {
  using Tiles = KeyTiles<kD>;
  Launch("AttentionKeyGradient", AttentionKeyGradientKernel<kD>,
         {.blocks =
              static_cast<unsigned>(KeyBlock<Tiles::kKeys>::Count(a) * key_heads * Tiles::kParts),
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
