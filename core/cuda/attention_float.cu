// Attention by float32 arithmetic, for any operands, any head_dim and any alignment: for parity,
// not for speed. A warp has one query, or one key, and its lanes meet the other side 32 rows at a
// time; the warps of a block share these rows, which pass through shared memory 64 columns at a
// time.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/cuda/attention.h"
#include "core/cuda/kernel.h"

namespace twinstream {
namespace gpu {
namespace {

constexpr int kWarps = 16;  // and rows of a block
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kTileRows = kWarpLanes, kTileColumns = 64;
constexpr int kTileStride = kTileColumns + 1;  // odd: a column lies in all banks

// A block's shared memory: the tile, two weights for each row of the tile and each warp, and some
// rows [D] for each warp.
struct SharedRows {
  int D;

  static int64_t Bytes(int64_t D, int64_t rows_of_a_warp) {
    return static_cast<int64_t>(sizeof(float)) *
           (kTileRows * kTileStride + kWarps * (2 * kTileRows + rows_of_a_warp * D));
  }
  __device__ float* Tile() const { return SharedMemory<float>(); }
  __device__ float* Weights(int which) const {
    return Tile() + kTileRows * kTileStride + (which * kWarps + ThisWarp()) * kTileRows;
  }
  __device__ float* Row(int which) const {
    return Tile() + kTileRows * kTileStride + 2 * kWarps * kTileRows +
           (int64_t{which} * kWarps + ThisWarp()) * D;
  }
};

// One head's rows of a tensor.
struct AnyRows {
  Activations x;
  int64_t first, stride;  // elements

  __device__ static AnyRows OfHead(const AttentionArguments& a, const Activations& x, int head) {
    return {x, a.HeadRow(head, 0), a.D};
  }
  __device__ static AnyRows OfTokens(const AttentionArguments& a, const Activations& x,
                                     int query_head) {
    return {x, a.TokenRow(query_head, 0), int64_t{a.H} * a.D};
  }
  __device__ float At(int row, int column) const { return x.Load(first + row * stride + column); }
};

// Of the whole block: rows [begin, begin + 32) below `end` of some columns, zeros elsewhere.
__device__ void FillTile(const AnyRows& rows, int begin, int end, int first_column, int D,
                         float* tile) {
  SyncBlock();  // the tile before is done with
  for (int i = ThisThread(); i < kTileRows * kTileColumns; i += kThreads) {
    const int row = begin + i / kTileColumns, column = first_column + i % kTileColumns;
    tile[i / kTileColumns * kTileStride + i % kTileColumns] =
        row < end && column < D ? rows.At(row, column) : 0;
  }
  SyncBlock();
}

// Columns of the tile that begins with `first`.
__device__ int TileColumns(int first, int D) {
  return D - first < kTileColumns ? D - first : kTileColumns;
}

// Of the whole block: the product of the warp's own row [D] with row begin + lane.
__device__ float RowProduct(const AnyRows& rows, int begin, int end, const float* own,
                            const SharedRows& shared) {
  const float* const row = shared.Tile() + ThisLane() * kTileStride;
  float sum = 0;
  for (int first = 0; first < shared.D; first += kTileColumns) {
    FillTile(rows, begin, end, first, shared.D, shared.Tile());
    const int columns = TileColumns(first, shared.D);
    for (int i = 0; i < columns; ++i) sum += own[first + i] * row[i];
  }
  return sum;
}

// Of the whole block: own <- own_factor own + the sum of rows begin .. begin + 31 times the warp's
// weights [32].
__device__ void AddRows(const AnyRows& rows, int begin, int end, const float* weights,
                        float own_factor, float* own, const SharedRows& shared) {
  SyncWarp();  // the weights are there
  for (int first = 0; first < shared.D; first += kTileColumns) {
    FillTile(rows, begin, end, first, shared.D, shared.Tile());
    for (int i = ThisLane(); i < TileColumns(first, shared.D); i += kWarpLanes) {
      float sum = own_factor * own[first + i];
      for (int j = 0; j < kTileRows; ++j) sum += weights[j] * shared.Tile()[j * kTileStride + i];
      own[first + i] = sum;
    }
  }
}

// The row that this warp has of those of its block: the last one again where there is none left.
struct OwnRow {
  int row, block_last;
  bool exists;

  __device__ static OwnRow Of(int begin, int end, int block) {
    const int first = begin + block * kWarps, last = std::min(end, first + kWarps) - 1;
    const int row = first + ThisWarp();
    return {std::min(row, last), last, row <= last};
  }
};

__device__ void ReadRow(const AnyRows& rows, int row, int D, float* to) {
  for (int i = ThisLane(); i < D; i += kWarpLanes) to[i] = rows.At(row, i);
}
__device__ void ZeroRow(int D, float* row) {
  for (int i = ThisLane(); i < D; i += kWarpLanes) row[i] = 0;
}

// The row of the tensor <- factor from [D] + own_factor itself, which is not read where that is 0.
__device__ void WriteRow(const AnyRows& rows, int row, int D, const float* from, float factor,
                         float own_factor) {
  for (int i = ThisLane(); i < D; i += kWarpLanes) {
    const float old = own_factor == 0 ? 0 : own_factor * rows.At(row, i);
    rows.x.Store(rows.first + row * rows.stride + i, factor * from[i] + old);
  }
}

__global__ void __launch_bounds__(kThreads) FloatForwardKernel(AttentionArguments a) {
  const int blocks = CeilingOfQuotient(a.query_end - a.query_begin, kWarps);
  const int head = static_cast<int>(blockIdx.x) / blocks;
  const auto own = OwnRow::Of(a.query_begin, a.query_end, static_cast<int>(blockIdx.x) % blocks);
  const SharedRows shared{a.D};
  float* const q = shared.Row(0);
  float* const out = shared.Row(1);
  const AnyRows keys = AnyRows::OfHead(a, a.k, head / a.group),
                values = AnyRows::OfHead(a, a.v, head / a.group);
  ReadRow(AnyRows::OfHead(a, a.q, head), own.row, a.D, q);
  ZeroRow(a.D, out);
  float largest = -INFINITY, sum = 0;
  const int key_end = a.KeyLimit(own.block_last);
  for (int key = a.key_begin; key < key_end; key += kTileRows) {
    const float product = RowProduct(keys, key, key_end, q, shared);
    const float score = key + ThisLane() < a.KeyLimit(own.row) ? a.scale * product : -INFINITY;
    const float best = fmaxf(largest, WarpMax(score)), shrink = Exp(largest - best);
    const float p = Exp(score - best);
    sum = sum * shrink + WarpSum(p);
    largest = best;
    shared.Weights(0)[ThisLane()] = p;
    AddRows(values, key, key_end, shared.Weights(0), shrink, out, shared);
  }
  if (!own.exists) return;
  float& lse = a.Lse(head, own.row);
  const bool merges = a.form == ScoreForm::kRectangle;
  const float part = largest + Log(sum), old = merges ? lse : -INFINITY;
  const float merged = merges ? MergedLse(old, part) : part;
  WriteRow(AnyRows::OfTokens(a, a.out, head), own.row, a.D, out, Exp(part - merged) / sum,
           Exp(old - merged));
  SyncWarp();  // all lanes have the old lse
  if (ThisLane() == 0) lse = merged;
}

__global__ void __launch_bounds__(kThreads) FloatQueryGradientKernel(AttentionArguments a) {
  const int blocks = CeilingOfQuotient(a.query_end - a.query_begin, kWarps);
  const int head = a.first_key_head * a.group + static_cast<int>(blockIdx.x) / blocks;
  const auto own = OwnRow::Of(a.query_begin, a.query_end, static_cast<int>(blockIdx.x) % blocks);
  const SharedRows shared{a.D};
  float* const q = shared.Row(0);
  float* const dout = shared.Row(1);
  float* const dq = shared.Row(2);
  const AnyRows keys = AnyRows::OfHead(a, a.k, head / a.group),
                values = AnyRows::OfHead(a, a.v, head / a.group),
                outs = AnyRows::OfTokens(a, a.out, head);
  ReadRow(AnyRows::OfHead(a, a.q, head), own.row, a.D, q);
  ReadRow(AnyRows::OfTokens(a, a.dout, head), own.row, a.D, dout);
  ZeroRow(a.D, dq);
  float delta = 0;
  for (int i = ThisLane(); i < a.D; i += kWarpLanes) delta += outs.At(own.row, i) * dout[i];
  delta = WarpSum(delta);
  const float lse = a.Lse(head, own.row);
  const int key_end = a.KeyLimit(own.block_last);
  for (int key = a.key_begin; key < key_end; key += kTileRows) {
    const float score = a.scale * RowProduct(keys, key, key_end, q, shared);
    const float dp = RowProduct(values, key, key_end, dout, shared);
    const bool visible = key + ThisLane() < a.KeyLimit(own.row);
    shared.Weights(0)[ThisLane()] = visible ? a.scale * Exp(score - lse) * (dp - delta) : 0;
    AddRows(keys, key, key_end, shared.Weights(0), 1, dq, shared);
  }
  if (!own.exists) return;
  WriteRow(AnyRows::OfHead(a, a.dq, head), own.row, a.D, dq, 1, a.own_factor());
  if (ThisLane() == 0) {
    a.Delta(head, own.row) = delta;
  }
}

__global__ void __launch_bounds__(kThreads) FloatKeyGradientKernel(AttentionArguments a) {
  const int blocks = CeilingOfQuotient(a.key_end - a.key_begin, kWarps);
  const int key_head = a.first_key_head + static_cast<int>(blockIdx.x) / blocks;
  const int block = static_cast<int>(blockIdx.x) % blocks;
  const auto own = OwnRow::Of(a.key_begin, a.key_end, block);
  const SharedRows shared{a.D};
  float* const k = shared.Row(0);
  float* const v = shared.Row(1);
  float* const dk = shared.Row(2);
  float* const dv = shared.Row(3);
  ReadRow(AnyRows::OfHead(a, a.k, key_head), own.row, a.D, k);
  ReadRow(AnyRows::OfHead(a, a.v, key_head), own.row, a.D, v);
  ZeroRow(a.D, dk);
  ZeroRow(a.D, dv);
  const int first_query = a.form == ScoreForm::kTriangle ? block * kWarps : a.query_begin;
  for (int head = key_head * a.group; head < (key_head + 1) * a.group; ++head) {
    const AnyRows queries = AnyRows::OfHead(a, a.q, head),
                  douts = AnyRows::OfTokens(a, a.dout, head);
    for (int begin = first_query; begin < a.query_end; begin += kTileRows) {
      const float score = a.scale * RowProduct(queries, begin, a.query_end, k, shared);
      const float dp = RowProduct(douts, begin, a.query_end, v, shared);
      const int query = begin + ThisLane();
      const bool visible = query < a.query_end && own.row < a.KeyLimit(query);
      const float p = visible ? Exp(score - a.Lse(head, query)) : 0;
      shared.Weights(0)[ThisLane()] = p;
      shared.Weights(1)[ThisLane()] = visible ? a.scale * p * (dp - a.Delta(head, query)) : 0;
      AddRows(douts, begin, a.query_end, shared.Weights(0), 1, dv, shared);
      AddRows(queries, begin, a.query_end, shared.Weights(1), 1, dk, shared);
    }
  }
  if (!own.exists) return;
  WriteRow(AnyRows::OfHead(a, a.dk, key_head), own.row, a.D, dk, 1, a.own_factor());
  WriteRow(AnyRows::OfHead(a, a.dv, key_head), own.row, a.D, dv, 1, a.own_factor());
}

LaunchShape ShapeOf(int64_t rows, int64_t heads, int64_t shared_bytes) {
  return {.blocks = static_cast<unsigned>(CeilingOfQuotient(rows, kWarps) * heads),
          .threads = kThreads,
          .shared_bytes = shared_bytes};
}

}  // namespace
}  // namespace gpu

void LaunchFloatForward(const gpu::AttentionArguments& a, int64_t heads, gpu::Stream stream) {
  gpu::Launch("FloatForward", gpu::FloatForwardKernel,
              gpu::ShapeOf(a.query_end - a.query_begin, heads, gpu::SharedRows::Bytes(a.D, 2)),
              stream, a);
}

void LaunchFloatQueryGradient(const gpu::AttentionArguments& a, int64_t key_heads,
                              gpu::Stream stream) {
  gpu::Launch("FloatQueryGradient", gpu::FloatQueryGradientKernel,
              gpu::ShapeOf(a.query_end - a.query_begin, key_heads * a.group,
                           gpu::SharedRows::Bytes(a.D, 3)),
              stream, a);
}

void LaunchFloatKeyGradient(const gpu::AttentionArguments& a, int64_t key_heads,
                            gpu::Stream stream) {
  gpu::Launch("FloatKeyGradient", gpu::FloatKeyGradientKernel,
              gpu::ShapeOf(a.key_end - a.key_begin, key_heads, gpu::SharedRows::Bytes(a.D, 4)),
              stream, a);
}

}  // namespace twinstream
