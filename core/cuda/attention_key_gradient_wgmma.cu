// The gradients of attention's keys and values on Hopper's tensor cores: what
// attention_key_gradient.cu computes, by wgmma. A warpgroup has 64 keys and their values, which
// stay in shared memory: there they are left operands of the scores' transpose and of the gradients
// of probabilities. Those of the next step are asked for right behind this step's last sum, the one
// of dk, so that the tensor cores always have work. Floor, of an H100 (990 TFLOP/s are 4096 FLOPs a
// clock and multiprocessor), for 128 keys and 64 queries of 128 columns:
//   products: 8 D FLOPs a score, 8.4 MFLOP, 2048 clocks
//   shared memory: 224 KB, 1792 clocks of 128 bytes: half of the products have their left operands
//   there too and read 128 bytes a clock, the other half 64; the copies write 32 KB
//   exponentials: 8192, 16 a clock: 512 clocks; with 64 columns too, beside 1024 of products
//   second-level cache: 32 KB; at its about 5.5 TB/s 256 FLOPs a byte are more than the rate
// so the products' rate is the limit, but with little to spare of shared memory; and of the first
// tile on the diagonal three quarters, of the second one quarter is masked.
#include <cstdint>
#include <type_traits>

#include "core/cuda/attention.h"
#include "core/cuda/attention_key_gradient.h"
#include "core/cuda/attention_panels.h"
#include "core/cuda/attention_tiles.h"
#include "core/cuda/panels.h"
#include "gpu/warpgroup.h"

namespace twinstream {
namespace gpu {
namespace {

template <int kD>
struct KeyTiles {
  static constexpr int kThreads = 2 * kWarpgroupThreads;
  static constexpr int kKeys = 128, kQueries = 64;
  using Keys = Panels<kKeys, kD>;
  using Queries = MetQueries<kQueries, kD, kThreads, Panels<kQueries, kD>>;
  static constexpr int64_t kSharedBytes = 2 * Keys::kBytes + Queries::kBytes;
};

// The gradients of a block's keys and values. Two barriers a step: before tiles are filled that the
// step before has read, and behind that.
template <int kD>
__device__ void ComputeKeyGradients(const AttentionArguments& a) {
  using Tiles = KeyTiles<kD>;
  constexpr int kQueries = Tiles::kQueries;
  const auto block = KeyBlock<Tiles::kKeys>::Of(a, static_cast<int>(blockIdx.x));
  // Taken of one lane the compiler knows it to be the same in a warp, as descriptors are.
  const int group_row = Shuffle(ThisThread() / kWarpgroupThreads, 0) * 64;
  const int warp_key = block.first_key + ThisWarp() * 16;
  const typename Tiles::Keys keys{SharedMemory<BFloat16>()};
  const typename Tiles::Keys values{keys.data + Tiles::kKeys * kD};
  const typename Tiles::Queries queries{a,
                                        QuerySteps::Of<kQueries>(a, block.head, block.first_key),
                                        {values.data + Tiles::kKeys * kD}};
  CopyRows<Tiles::kKeys, kD, Tiles::kThreads>(keys, a.Rows(a.k, block.head), block.first_key,
                                              a.key_end, a.D);
  CopyRows<Tiles::kKeys, kD, Tiles::kThreads>(values, a.Rows(a.v, block.head), block.first_key,
                                              a.key_end, a.D);
  queries.FillTiles(0);
  queries.StoreStatistic(0, queries.LoadStatistic(0));

  Sums<1, kQueries / 8> p, ds;  // before that scores and gradients of p
  Sums<1, kD / 8> dk, dv;
  Weights<1, kQueries / 16> weights;
  SetToZero(dk);
  SetToZero(dv);
  const auto issue_scores = [&](int step) {
    IssueRowProducts(p, keys, group_row, queries.pairs.First(step));
    IssueRowProducts(ds, values, group_row, queries.pairs.Second(step));
  };
  AwaitTiles();
  FenceProducts(p, ds, dk, dv);
  issue_scores(0);
  for (int step = 0, steps = queries.steps.steps;; ++step) {
    const bool goes_on = step + 1 < steps;
    WaitForProducts<1>(p, dk, weights);
    SyncBlock();  // the tiles of the step before are done with
    if (goes_on) queries.FillTiles(step + 1);
    const float next_statistic = goes_on ? queries.LoadStatistic(step + 1) : 0;
    ColumnProbabilities(a, warp_key, queries.Query(step), queries.Statistics(step), p);
    if (goes_on) queries.StoreStatistic(step + 1, next_statistic);
    RoundToWeights(weights, p);
    FenceProducts(weights, dv);
    IssueWeightedRows(dv, weights, queries.pairs.Second(step));
    WaitForProducts<1>(ds);
    ColumnScoreGradients(p, queries.Deltas(step), ds);
    WaitForProducts<0>(dv, weights);
    RoundToWeights(weights, ds);
    FenceProducts(weights, dk);
    IssueWeightedRows(dk, weights, queries.pairs.First(step));
    if (!goes_on) break;
    AwaitTiles();
    FenceProducts(p, ds);
    issue_scores(step + 1);
  }
  WaitForProducts<0>(dk);
  WriteGradient(a, a.dk, block.head, warp_key, a.key_end, 0, dk, a.scale);
  WriteGradient(a, a.dv, block.head, warp_key, a.key_end, 0, dv, 1);
}

// One block for a KeyBlock.
template <int kD>
__global__ void __launch_bounds__(KeyTiles<kD>::kThreads, 1)
    WarpgroupKeyGradientKernel(AttentionArguments a) {
  if constexpr (HasWarpgroupProducts()) {
    ComputeKeyGradients<kD>(a);
  } else {
    Trap();
  }
}

template <int kD>
void LaunchKeyGradient(const AttentionArguments& a, int64_t key_heads, Stream stream) {
  using Tiles = KeyTiles<kD>;
  Launch("WarpgroupKeyGradient", WarpgroupKeyGradientKernel<kD>,
         {.blocks = static_cast<unsigned>(KeyBlock<Tiles::kKeys>::Count(a) * key_heads),
          .threads = Tiles::kThreads,
          .shared_bytes = Tiles::kSharedBytes},
         stream, a);
}

}  // namespace
}  // namespace gpu

void LaunchWarpgroupKeyGradient(const gpu::AttentionArguments& a, int64_t key_heads,
                                gpu::Stream stream) {
  gpu::WithPanelColumns(a.D, [&]<int kD>(std::integral_constant<int, kD>) {
    gpu::LaunchKeyGradient<kD>(a, key_heads, stream);
  });
}

}  // namespace twinstream
