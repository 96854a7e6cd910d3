// Attention on tensor cores: tiles of bf16 in shared memory, and the products of a warp's rows with
// them. A warp's results lie in its registers as MmaBFloat16 leaves them: lane 4 g + p holds rows
// g and g + 8 of every tile of 16 rows, columns 2 p and 2 p + 1 of every tile of 8 columns.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/cuda/attention.h"
#include "core/cuda/kernel.h"
#include "gpu/primitives.h"

namespace twinstream::gpu {

// f(std::integral_constant<int, kD>()) for the columns of tiles that hold rows of D values.
template <class F>
void WithTileColumns(int D, F f) {
  if (D <= 64) return f(std::integral_constant<int, 64>());
  if (D <= 128) return f(std::integral_constant<int, 128>());
  f(std::integral_constant<int, 256>());
}

// What a block has: some queries of one head. Those with the most keys come first: they take
// longest.
template <int kQueries>
struct QueryBlock {
  int head, first_query;
  int key_end;  // the first key that none of the queries sees

  // Blocks of a head.
  __host__ __device__ static int Count(const AttentionArguments& a) {
    return CeilingOfQuotient(a.query_end - a.query_begin, kQueries);
  }
  // Of this block, in a grid for the heads from first_head on.
  __device__ static QueryBlock Of(const AttentionArguments& a, int first_head) {
    const int blocks = Count(a), number = static_cast<int>(blockIdx.x);
    const int first_query = a.query_begin + (blocks - 1 - number % blocks) * kQueries;
    return {first_head + number / blocks, first_query,
            a.KeyLimit(std::min(a.query_end, first_query + kQueries) - 1)};
  }
};

// Rows of kD bf16 in shared memory, kD a multiple of 64. The chunks of 16 bytes in each 128 bytes
// of a row are permuted by the row, so that those of eight neighbouring rows lie in different
// banks.
template <int kD>
struct Tile {
  BFloat16* data;

  // Chunk `even` or, with `next` 1, the one after it: a constant and what the lanes differ in,
  // apart for the compiler's sake, which finds few different addresses in this.
  __device__ BFloat16* At(int row, int even, int next) const {
    return data + row * kD + even / 8 * 64 + ((even % 8 + next) ^ (row & 7)) * 8;
  }
};

// Two pairs of tiles of kRows rows, in turn filled and read.
template <int kRows, int kD>
struct TilePairs {
  BFloat16* data;

  __device__ Tile<kD> First(int turn) const { return {data + turn % 2 * 2 * kRows * kD}; }
  __device__ Tile<kD> Second(int turn) const { return {data + (turn % 2 * 2 + 1) * kRows * kD}; }
};

// Starts to copy rows [begin, begin + kRows) of a head, of which those below `end` exist, D values
// each. The others, and columns beyond D, become zeros.
template <int kRows, int kD, int kThreads>
__device__ void CopyRows(Tile<kD> to, const HeadRows& from, int begin, int end, int D) {
  constexpr int kChunks = kD / 8, kRowsAtOnce = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && kRows % kRowsAtOnce == 0);
  const int thread = Opaque(ThisThread()), chunk = thread % kChunks, first = thread / kChunks;
  const int rows = chunk * 8 < D ? end - begin - first : 0;  // from this thread's first on
  const BFloat16* source = from.At(begin + first) + chunk * 8;
#pragma unroll
  for (int i = 0; i < kRows; i += kRowsAtOnce) {
    CopyAsync16(to.At(first + i, chunk & ~1, chunk & 1), i < rows ? source : from.first, i < rows);
    source += int64_t{kRowsAtOnce} * from.stride;
  }
}

// float32 results of a warp: [16 kRowTiles, 8 kColumnTiles].
template <int kRowTiles, int kColumnTiles>
using Sums = float[kRowTiles][kColumnTiles][4];
// The same rounded to bf16, as the left operand of a product: [16 kRowTiles, 16 kSteps].
template <int kRowTiles, int kSteps>
using Weights = uint32_t[kRowTiles][kSteps][4];

template <int kRowTiles, int kColumnTiles>
__device__ void SetToZero(Sums<kRowTiles, kColumnTiles>& sums) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
    }
  }
}

template <int kRowTiles, int kColumnTiles, int kSteps>
__device__ void RoundToWeights(Weights<kRowTiles, kSteps>& weights,
                               const Sums<kRowTiles, kColumnTiles>& sums) {
  static_assert(kColumnTiles == 2 * kSteps);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const pair = &sums[m][2 * k + i / 2][i % 2 * 2];
        weights[m][k][i] = PackBFloat16(pair[0], pair[1]);
      }
    }
  }
}

// The two tiles of 8 columns that one load of four matrices brings.
template <int kRowTiles, int kColumnTiles>
__device__ void AddProducts(Sums<kRowTiles, kColumnTiles>& sums, int column_pair,
                            const uint32_t (&left)[kRowTiles][4], const uint32_t (&right)[4]) {
  const uint32_t first[2] = {right[0], right[1]}, second[2] = {right[2], right[3]};
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    MmaBFloat16(sums[m][2 * column_pair], left[m], first);
    MmaBFloat16(sums[m][2 * column_pair + 1], left[m], second);
  }
}

// sums += left right', of the warp's rows of `left`, from row left_row on, and the first
// 8 kColumnTiles rows of `right`.
template <int kRowTiles, int kColumnTiles, int kD>
__device__ void AddRowProducts(Sums<kRowTiles, kColumnTiles>& sums, Tile<kD> left, int left_row,
                               Tile<kD> right) {
  const int lane = Opaque(ThisLane());
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    uint32_t rows[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      LoadMatrices(rows[m], left.At(left_row + 16 * m + lane % 16, 2 * k, lane / 16));
    }
#pragma unroll
    for (int n = 0; n < kColumnTiles / 2; ++n) {
      uint32_t columns[4];
      LoadMatrices(columns, right.At(16 * n + lane / 16 * 8 + lane % 8, 2 * k, lane / 8 % 2));
      AddProducts(sums, n, rows, columns);
    }
  }
}

// sums += weights right, of the first 16 kSteps rows of `right` and its 8 kColumnTiles columns
// from first_column, a multiple of 16, on.
template <int kRowTiles, int kColumnTiles, int kSteps, int kD>
__device__ void AddWeightedRows(Sums<kRowTiles, kColumnTiles>& sums,
                                const Weights<kRowTiles, kSteps>& weights, Tile<kD> right,
                                int first_column) {
  const int lane = Opaque(ThisLane());
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    uint32_t rows[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[m][i] = weights[m][k][i];
    }
#pragma unroll
    for (int n = 0; n < kColumnTiles / 2; ++n) {
      uint32_t columns[4];
      LoadMatricesTransposed(columns,
                             right.At(16 * k + lane % 16, first_column / 8 + 2 * n, lane / 16));
      AddProducts(sums, n, rows, columns);
    }
  }
}

// What a warp's rows do not see becomes -inf. scores: of queries from first_query on against keys
// from first_key on.
template <int kRowTiles, int kKeyTiles>
__device__ void Mask(const AttentionArguments& a, int first_query, int first_key,
                     Sums<kRowTiles, kKeyTiles>& scores) {
  const int lane = Opaque(ThisLane()), group = lane / 4, pair = lane % 4;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int limit = a.KeyLimit(first_query + 16 * m + group + i / 2 * 8) - first_key;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        if (8 * n + 2 * pair + i % 2 >= limit) scores[m][n][i] = -INFINITY;
      }
    }
  }
}

// The row at `to`, of which `columns` are left from `place` on, becomes factor times row g + 8 half
// of the sums plus own_factor times itself; it is not read when own_factor is 0.
template <int kColumnTiles>
__device__ void WriteRow(const Activations& to, int64_t place, int columns,
                         const float (&sums)[kColumnTiles][4], int half, float factor,
                         float own_factor) {
  const int pair = Opaque(ThisLane()) % 4;
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
    if (8 * n >= columns) continue;
    const int64_t at = place + 8 * n + 2 * pair;
    const FloatPair old = own_factor == 0 ? FloatPair{0, 0} : to.LoadPair(at);
    to.StorePair(at, {factor * sums[n][2 * half] + own_factor * old.first,
                      factor * sums[n][2 * half + 1] + own_factor * old.second});
  }
}

// Writes factor times a warp's sums, or adds them to what is there
// (AttentionArguments::own_factor), as the tokens' rows from first_token on, below `end`, of a
// tensor like q, from first_column on.
template <int kRowTiles, int kColumnTiles>
__device__ void WriteGradient(const AttentionArguments& a, const Activations& to, int head,
                              int first_token, int end, int first_column,
                              const Sums<kRowTiles, kColumnTiles>& sums, float factor) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = first_token + 16 * m + ThisLane() / 4 + 8 * half;
      if (token >= end) continue;
      WriteRow(to, a.HeadRow(head, token) + first_column, a.D - first_column, sums[m], half, factor,
               a.own_factor());
    }
  }
}

}  // namespace twinstream::gpu
