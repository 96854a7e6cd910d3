// Attention's forward on Hopper's tensor cores: wgmma in the order of FlashAttention-3 (arXiv
// 2407.08608). Of each tile of keys a warpgroup asks for the scores and at once for the sum of the
// values of the tile before, weighted; beside that sum it takes the scores into the softmax. The
// block has one barrier a tile, beyond which its two warpgroups run as they like.
// Floor, of an H100 (990 TFLOP/s are 4096 FLOPs a clock and multiprocessor), for 128 queries and
// 128 keys of 128 columns:
//   products: 8.4 MFLOP, 2048 clocks
//   shared memory: each product reads 64 bytes a clock, the copies write 32, of 128 that there are
//   exponentials: 16384, 16 a clock: 1024 clocks; with 64 columns as long as the products
//   second-level cache: 64 KB; at its about 5.5 TB/s 128 FLOPs a byte are 700 TFLOP/s, 0.7 of the
//   rate
// so 0.7 of the rate is the most, less with 64 columns, where nothing may wait for exponentials,
// and by the masked half of the tile on the diagonal.
#include <cstdint>
#include <type_traits>

#include "core/cuda/attention.h"
#include "core/cuda/attention_panels.h"
#include "core/cuda/attention_softmax.h"
#include "core/cuda/attention_tiles.h"
#include "core/cuda/panels.h"
#include "gpu/warpgroup.h"

namespace twinstream {
namespace gpu {
namespace {

// Four tiles of 128 rows: keys and values, two of each, in turn filled and read.
template <int kD>
struct ForwardTiles {
  static constexpr int kThreads = 2 * kWarpgroupThreads;
  static constexpr int kRows = 128;  // queries of a block; keys of a step
  using Tile = Panels<kRows, kD>;
  static constexpr int64_t kSharedBytes = 4 * Tile::kBytes;

  BFloat16* data;
  StridedRows key_rows, value_rows;
  int first_key, key_end, D;

  __device__ Tile Keys(int step) const { return {data + step % 2 * kRows * kD}; }
  __device__ Tile Values(int step) const { return {data + (2 + step % 2) * kRows * kD}; }
  __device__ int KeyOf(int step) const { return first_key + step * kRows; }
  __device__ int Steps() const { return CeilingOfQuotient(key_end - first_key, kRows); }

  // Starts to copy.
  __device__ void FillKeys(int step) const {
    if (step < Steps()) {
      CopyRows<kRows, kD, kThreads>(Keys(step), key_rows, KeyOf(step), key_end, D);
    }
  }
  // The values of a step and the keys of the next, into tiles that the step before has read.
  __device__ void FillNext(int step) const {
    CopyRows<kRows, kD, kThreads>(Values(step), value_rows, KeyOf(step), key_end, D);
    FillKeys(step + 1);
    CommitCopies();
  }
};

// A block of queries against its keys. The queries come by way of the tile that is filled last.
template <int kD>
__device__ void AttendToKeys(const AttentionArguments& a) {
  using Tiles = ForwardTiles<kD>;
  const auto block = QueryBlock<Tiles::kRows>::Of(a, 0);
  const int head = block.head, key_head = head / a.group, warp_row = ThisWarp() * 16;
  const int first_query = block.first_query + warp_row;
  const Tiles tiles{.data = SharedMemory<BFloat16>(),
                    .key_rows = a.Rows(a.k, key_head),
                    .value_rows = a.Rows(a.v, key_head),
                    .first_key = a.key_begin,
                    .key_end = block.key_end,
                    .D = a.D};
  CopyRows<Tiles::kRows, kD, Tiles::kThreads>(tiles.Values(1), a.Rows(a.q, head), block.first_query,
                                              a.query_end, a.D);
  tiles.FillKeys(0);
  CommitCopies();
  RunningSoftmax<1> softmax(a.scale);
  Sums<1, Tiles::kRows / 8> scores;
  float shrink[1][2];
  const auto take_scores = [&](int step) {
    const int first_key = tiles.KeyOf(step);
    if (first_key + Tiles::kRows > a.KeyLimit(first_query)) Mask(a, first_query, first_key, scores);
    softmax.Take(scores, shrink);
  };

  AwaitTiles();
  Weights<1, kD / 16> queries;
  LoadRows(queries, tiles.Values(1), warp_row);
  tiles.FillNext(0);
  FenceProducts(queries, scores);
  IssueRowProducts(scores, queries, tiles.Keys(0));
  WaitForProducts<0>(scores);
  take_scores(0);
  Weights<1, Tiles::kRows / 16> weights;
  Sums<1, kD / 8> out;
  SetToZero(out);
  // At the beginning of a step, a jump behind the exponentials of the last one: in one piece of
  // code the compiler puts the wait before those, which it is to be beside.
  const auto take_values = [&] {
    WaitForProducts<0>(out, weights);
    ScaleRows(out, shrink);
    RoundToWeights(weights, scores);
    AwaitTiles();
  };
  const int steps = tiles.Steps();
  for (int step = 1; step < steps; ++step) {
    take_values();
    tiles.FillNext(step);
    FenceProducts(queries, scores, weights, out);
    IssueRowProducts(scores, queries, tiles.Keys(step));
    IssueWeightedRows(out, weights, tiles.Values(step - 1));
    WaitForProducts<1>(scores);
    take_scores(step);
  }
  take_values();
  FenceProducts(weights, out);
  IssueWeightedRows(out, weights, tiles.Values(steps - 1));
  WaitForProducts<0>(out, weights);
  softmax.Finish();
  WriteResults(a, head, first_query, softmax, out);
}

// One block for a QueryBlock.
template <int kD>
__global__ void __launch_bounds__(ForwardTiles<kD>::kThreads, 1)
    WarpgroupForwardKernel(AttentionArguments a) {
  if constexpr (HasWarpgroupProducts()) {
    AttendToKeys<kD>(a);
  } else {
    Trap();
  }
}

template <int kD>
void LaunchForward(const AttentionArguments& a, int64_t heads, Stream stream) {
  using Tiles = ForwardTiles<kD>;
  Launch("WarpgroupForward", WarpgroupForwardKernel<kD>,
         {.blocks = static_cast<unsigned>(QueryBlock<Tiles::kRows>::Count(a) * heads),
          .threads = Tiles::kThreads,
          .shared_bytes = Tiles::kSharedBytes},
         stream, a);
}

}  // namespace
}  // namespace gpu

void LaunchWarpgroupForward(const gpu::AttentionArguments& a, int64_t heads, gpu::Stream stream) {
  gpu::WithPanelColumns(a.D, [&]<int kD>(std::integral_constant<int, kD>) {
    gpu::LaunchForward<kD>(a, heads, stream);
  });
}

}  // namespace twinstream
