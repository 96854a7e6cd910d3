// The gradient of attention's queries on Hopper's tensor cores: what attention_query_gradient.cu
// computes, by wgmma. A warpgroup has 64 queries and their dO in registers. Its next scores and
// gradients of probabilities are asked for right behind its sum of this step's keys, and the other
// warpgroup's products are beside whatever it computes itself: the tensor cores always have work.
// Floor, of an H100 (990 TFLOP/s are 4096 FLOPs a clock and multiprocessor), for 128 queries and 64
// keys of 128 columns:
//   products: 6 D FLOPs a score, 6.3 MFLOP, 1536 clocks
//   shared memory: each product reads 64 bytes a clock, the copies write 21, of 128 that there are
//   exponentials: 8192, 16 a clock: 512 clocks; with 64 columns too, beside 768 of products
//   second-level cache: 32 KB; at its about 5.5 TB/s 192 FLOPs a byte are more than the rate
// so nothing but the order of a warpgroup's own steps, and the masked half of the tiles on the
// diagonal, keeps it from the rate.
#include <cstdint>
#include <type_traits>

#include "core/cuda/attention.h"
#include "core/cuda/attention_panels.h"
#include "core/cuda/attention_query_gradient.h"
#include "core/cuda/attention_tiles.h"
#include "core/cuda/panels.h"
#include "gpu/warpgroup.h"

namespace twinstream {
namespace gpu {
namespace {

template <int kD>
struct QueryTiles {
  static constexpr int kThreads = 2 * kWarpgroupThreads;
  static constexpr int kQueries = 128, kKeys = 64;
  using Queries = Panels<kQueries, kD>;
  using Pairs = TilePairs<kKeys, kD, Panels<kKeys, kD>>;  // keys and values
  static constexpr int64_t kSharedBytes = 2 * Queries::kBytes + 4 * Panels<kKeys, kD>::kBytes;
};

// The keys and values that a block meets, in steps of kKeys.
template <int kD>
struct MetKeys {
  using Tiles = QueryTiles<kD>;

  typename Tiles::Pairs pairs;
  StridedRows key_rows, value_rows;
  int first_key, key_end, D;

  __device__ int KeyOf(int step) const { return first_key + step * Tiles::kKeys; }
  __device__ int Steps() const { return CeilingOfQuotient(key_end - first_key, Tiles::kKeys); }
  // Starts to copy.
  __device__ void Fill(int step) const {
    constexpr int kKeys = Tiles::kKeys, kThreads = Tiles::kThreads;
    CopyRows<kKeys, kD, kThreads>(pairs.First(step), key_rows, KeyOf(step), key_end, D);
    CopyRows<kKeys, kD, kThreads>(pairs.Second(step), value_rows, KeyOf(step), key_end, D);
    CommitCopies();
  }
};

// The warp's queries and their dO as left operands.
template <int kD>
struct QueryRows {
  Weights<1, kD / 16> queries, douts;

  // By way of shared memory, and awaits all copies that the block has started before.
  __device__ void Load(const AttentionArguments& a, int head, int first_query, BFloat16* shared) {
    using Tiles = QueryTiles<kD>;
    using Rows = typename Tiles::Queries;
    const Rows query_rows{shared}, dout_rows{shared + Tiles::kQueries * kD};
    CopyRows<Tiles::kQueries, kD, Tiles::kThreads>(query_rows, a.Rows(a.q, head), first_query,
                                                   a.query_end, a.D);
    CopyRows<Tiles::kQueries, kD, Tiles::kThreads>(dout_rows, a.TokenRows(a.dout, head),
                                                   first_query, a.query_end, a.D);
    CommitCopies();
    AwaitTiles();
    LoadRows(queries, query_rows, ThisWarp() * 16);
    LoadRows(douts, dout_rows, ThisWarp() * 16);
  }
};

// The gradient of a block's queries. Two barriers a step: before tiles are filled that the step
// before has read, and behind that.
template <int kD>
__device__ void ComputeQueryGradient(const AttentionArguments& a) {
  using Tiles = QueryTiles<kD>;
  constexpr int kKeys = Tiles::kKeys;
  const auto block = QueryBlock<Tiles::kQueries>::Of(a, a.first_key_head * a.group);
  const int head = block.head, warp_query = block.first_query + ThisWarp() * 16;
  BFloat16* const shared = SharedMemory<BFloat16>();
  const MetKeys<kD> keys{.pairs = {shared + 2 * Tiles::kQueries * kD},
                         .key_rows = a.Rows(a.k, head / a.group),
                         .value_rows = a.Rows(a.v, head / a.group),
                         .first_key = a.key_begin,
                         .key_end = block.key_end,
                         .D = a.D};
  keys.Fill(0);
  const auto statistics = StatisticsOf<1>(a, head, warp_query);
  KeepDeltas(a, head, warp_query, statistics);
  QueryRows<kD> rows;
  rows.Load(a, head, block.first_query, shared);

  Sums<1, kKeys / 8> p, ds;  // before that scores and gradients of p
  Sums<1, kD / 8> dq;
  Weights<1, kKeys / 16> weights;
  SetToZero(dq);
  const auto issue_scores = [&](int step) {
    IssueRowProducts(p, rows.queries, keys.pairs.First(step));
    IssueRowProducts(ds, rows.douts, keys.pairs.Second(step));
  };
  const auto take_scores = [&](int step) {
    WaitForProducts<1>(p, dq, weights);
    SyncBlock();  // the tiles of the step before are done with
    if (step + 1 < keys.Steps()) keys.Fill(step + 1);
    const int first_key = keys.KeyOf(step);
    if (first_key + kKeys > a.KeyLimit(warp_query)) Mask(a, warp_query, first_key, p);
    RowProbabilities(a, statistics, p);
  };
  // At the beginning of a step, a jump behind the exponentials of the last one: in one piece of
  // code the compiler puts the wait before those, which it is to be beside.
  const auto add_keys = [&](int step) {
    WaitForProducts<0>(ds);
    RowScoreGradients(p, statistics, ds);
    RoundToWeights(weights, ds);
    FenceProducts(rows.queries, rows.douts, p, ds, weights, dq);
    IssueWeightedRows(dq, weights, keys.pairs.First(step));
  };
  FenceProducts(rows.queries, rows.douts, p, ds, dq);
  issue_scores(0);
  take_scores(0);
  const int steps = keys.Steps();
  for (int step = 1; step < steps; ++step) {
    add_keys(step - 1);
    AwaitTiles();
    issue_scores(step);
    take_scores(step);
  }
  add_keys(steps - 1);
  WaitForProducts<0>(dq);
  WriteGradient(a, a.dq, head, warp_query, a.query_end, 0, dq, a.scale);
}

// One block for a QueryBlock.
template <int kD>
__global__ void __launch_bounds__(QueryTiles<kD>::kThreads, 1)
    WarpgroupQueryGradientKernel(AttentionArguments a) {
  if constexpr (HasWarpgroupProducts()) {
    ComputeQueryGradient<kD>(a);
  } else {
    Trap();
  }
}

template <int kD>
void LaunchQueryGradient(const AttentionArguments& a, int64_t key_heads, Stream stream) {
  using Tiles = QueryTiles<kD>;
  Launch(
      "WarpgroupQueryGradient", WarpgroupQueryGradientKernel<kD>,
      {.blocks = static_cast<unsigned>(QueryBlock<Tiles::kQueries>::Count(a) * key_heads * a.group),
       .threads = Tiles::kThreads,
       .shared_bytes = Tiles::kSharedBytes},
      stream, a);
}

}  // namespace
}  // namespace gpu

void LaunchWarpgroupQueryGradient(const gpu::AttentionArguments& a, int64_t key_heads,
                                  gpu::Stream stream) {
  gpu::WithPanelColumns(a.D, [&]<int kD>(std::integral_constant<int, kD>) {
    gpu::LaunchQueryGradient<kD>(a, key_heads, stream);
  });
}

}  // namespace twinstream
