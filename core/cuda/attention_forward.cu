// Attention's forward on tensor cores by mma.sync: FlashAttention-2 (arXiv 2307.08691). A block
// holds the rows of some queries of one head and meets the keys and values tile by tile, keeping of
// each row the largest score, the sum of the exponentials and the weighted sum of the values, all
// float32. Floor: 4 D FLOPs of tensor cores for every score that the mask leaves; tiles wholly
// beyond the diagonal are never met, and only those on it are masked.
#include <cstdint>

#include "core/cuda/attention.h"
#include "core/cuda/attention_softmax.h"
#include "core/cuda/attention_tiles.h"

namespace twinstream {
namespace gpu {
namespace {

// Two row tiles a warp share each load of keys or values; with 256 columns their sums would not fit
// the registers.
template <int kD>
struct ForwardTiles {
  static constexpr int kWarps = 4, kThreads = kWarps * kWarpLanes;
  static constexpr int kRowTiles = kD <= 128 ? 2 : 1;  // of 16 queries, of each warp
  static constexpr int kQueries = kWarps * kRowTiles * 16;
  static constexpr int kKeys = 64;
  static constexpr int64_t kSharedBytes =
      (kQueries + 2 * kKeys) * kD * static_cast<int64_t>(sizeof(BFloat16));
};

// One block for a QueryBlock.
template <int kD>
__global__ void __launch_bounds__(ForwardTiles<kD>::kThreads, 2)
    AttentionForwardKernel(AttentionArguments a) {
  using Tiles = ForwardTiles<kD>;
  const auto block = QueryBlock<Tiles::kQueries>::Of(a, 0);
  const int head = block.head, block_query = block.first_query, key_end = block.key_end;
  const int warp_row = ThisWarp() * Tiles::kRowTiles * 16;

  const Tile<kD> queries{SharedMemory<BFloat16>()};
  const Tile<kD> keys{queries.data + Tiles::kQueries * kD};
  const Tile<kD> values{keys.data + Tiles::kKeys * kD};
  const StridedRows key_rows = a.Rows(a.k, head / a.group),
                    value_rows = a.Rows(a.v, head / a.group);
  const auto copy = [&](const Tile<kD>& to, const StridedRows& from, int key) {
    CopyRows<Tiles::kKeys, kD, Tiles::kThreads>(to, from, key, key_end, a.D);
    CommitCopies();
  };
  CopyRows<Tiles::kQueries, kD, Tiles::kThreads>(queries, a.Rows(a.q, head), block_query,
                                                 a.query_end, a.D);
  copy(keys, key_rows, a.key_begin);

  RunningSoftmax<Tiles::kRowTiles> softmax(a.scale);
  Sums<Tiles::kRowTiles, kD / 8> out;
  SetToZero(out);
  for (int key = a.key_begin; key < key_end; key += Tiles::kKeys) {
    WaitForCopies<0>();
    SyncBlock();  // the keys are there, the values before them are done with
    copy(values, value_rows, key);
    Sums<Tiles::kRowTiles, Tiles::kKeys / 8> scores;
    SetToZero(scores);
    AddRowProducts(scores, queries, warp_row, keys);
    WaitForCopies<0>();
    SyncBlock();  // the values are there, the keys are done with
    if (key + Tiles::kKeys < key_end) copy(keys, key_rows, key + Tiles::kKeys);
    if (key + Tiles::kKeys > a.KeyLimit(block_query + warp_row)) {
      Mask(a, block_query + warp_row, key, scores);
    }
    float shrink[Tiles::kRowTiles][2];
    softmax.Take(scores, shrink);
    ScaleRows(out, shrink);
    Weights<Tiles::kRowTiles, Tiles::kKeys / 16> weights;
    RoundToWeights(weights, scores);
    AddWeightedRows(out, weights, values, 0);
  }
  softmax.Finish();
  WriteResults(a, head, block_query + warp_row, softmax, out);
}

template <int kD>
void LaunchForward(const AttentionArguments& a, int64_t heads, Stream stream) {
  using Tiles = ForwardTiles<kD>;
  Launch("AttentionForward", AttentionForwardKernel<kD>,
         {.blocks = static_cast<unsigned>(QueryBlock<Tiles::kQueries>::Count(a) * heads),
          .threads = Tiles::kThreads,
          .shared_bytes = Tiles::kSharedBytes},
         stream, a);
}

}  // namespace
}  // namespace gpu

void LaunchTensorForward(const gpu::AttentionArguments& a, int64_t heads, gpu::Stream stream) {
  gpu::WithTileColumns(a.D, [&]<int kD>(std::integral_constant<int, kD>) {
    gpu::LaunchForward<kD>(a, heads, stream);
  });
}

}  // namespace twinstream
