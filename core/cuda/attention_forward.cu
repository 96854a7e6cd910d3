// Attention's forward on tensor cores: FlashAttention-2 (arXiv 2307.08691). A block holds the rows
// of some queries of one head and meets the keys and values tile by tile, keeping of each row the
// largest score, the sum of the exponentials and the weighted sum of the values, all float32.
// Floor: 4 D FLOPs of tensor cores for every score that the mask leaves; tiles wholly beyond the
// diagonal are never met, and only those on it are masked.
#include <cmath>
#include <cstdint>

#include "core/cuda/attention.h"
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

// The softmax of a warp's rows over the keys met so far. Of row g + 8 half of each row tile: the
// largest unscaled score, the same in the four lanes of the row, and the sum of exponentials over
// the columns of this lane.
template <int kRowTiles>
struct RunningSoftmax {
  float largest[kRowTiles][2];
  float sum[kRowTiles][2];
  float log2_scale;  // scale times kLog2E: exp(scale s) = 2^(log2_scale s)

  __device__ explicit RunningSoftmax(float scale) : log2_scale(scale * kLog2E) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[m][half] = -INFINITY;
        sum[m][half] = 0;
      }
    }
  }

  // Scores of further keys become exponentials; `out`, weighted with the earlier ones, follows the
  // largest score. Of every row a score has been visible in this or an earlier call.
  template <int kKeyTiles, int kColumnTiles>
  __device__ void Take(Sums<kRowTiles, kKeyTiles>& scores, Sums<kRowTiles, kColumnTiles>& out) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float best = largest[m][half];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          best = fmaxf(best, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        }
        best = fmaxf(best, ShuffleXor(best, 1));
        best = fmaxf(best, ShuffleXor(best, 2));
        const float shrink = FastExp2((largest[m][half] - best) * log2_scale);
        const float shift = best * log2_scale;
        largest[m][half] = best;
        float total = sum[m][half] * shrink;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            scores[m][n][i] = FastExp2(scores[m][n][i] * log2_scale - shift);
            total += scores[m][n][i];
          }
        }
        sum[m][half] = total;
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          out[m][n][2 * half] *= shrink;
          out[m][n][2 * half + 1] *= shrink;
        }
      }
    }
  }

  // Each sum becomes that of the whole row.
  __device__ void Finish() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[m][half] += ShuffleXor(sum[m][half], 1);
        sum[m][half] += ShuffleXor(sum[m][half], 2);
      }
    }
  }
};

// Writes a warp's rows, from token first_query on, or takes them into what is there; their lse too.
template <int kRowTiles, int kColumnTiles>
__device__ void WriteResults(const AttentionArguments& a, int head, int first_query,
                             const RunningSoftmax<kRowTiles>& softmax,
                             const Sums<kRowTiles, kColumnTiles>& out) {
  const int group = ThisLane() / 4;
  float old_lse[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query + 16 * m + group + 8 * half;
      const bool merges = a.form == ScoreForm::kRectangle && query < a.query_end;
      old_lse[m][half] = merges ? a.Lse(head, query) : -INFINITY;
    }
  }
  SyncWarp();  // all four lanes of a row have its old lse
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query + 16 * m + group + 8 * half;
      if (query >= a.query_end) continue;
      const float sum = softmax.sum[m][half], old = old_lse[m][half];
      const float part = a.scale * softmax.largest[m][half] + Log(sum);
      const float merged = a.form == ScoreForm::kTriangle ? part : MergedLse(old, part);
      WriteRow(a.out, a.TokenRow(head, query), a.D, out[m], half, Exp(part - merged) / sum,
               Exp(old - merged));
      if (ThisLane() % 4 == 0) a.Lse(head, query) = merged;
    }
  }
}

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
    softmax.Take(scores, out);
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
