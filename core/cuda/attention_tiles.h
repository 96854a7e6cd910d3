// Attention on tensor cores: what a block has of it, and the products of a warp's rows with tiles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/cuda/attention.h"
#include "core/cuda/kernel.h"
#include "core/cuda/tiles.h"
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

// Two pairs of tiles of kRows rows, in turn filled and read.
template <int kRows, int kD, class TileOfRows = Tile<kD>>
struct TilePairs {
  BFloat16* data;

  __device__ TileOfRows First(int turn) const { return {data + turn % 2 * 2 * kRows * kD}; }
  __device__ TileOfRows Second(int turn) const { return {data + (turn % 2 * 2 + 1) * kRows * kD}; }
};

// A warp's Sums rounded to bf16, as the left operand of a product: [16 kRowTiles, 16 kSteps].
template <int kRowTiles, int kSteps>
using Weights = uint32_t[kRowTiles][kSteps][4];

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
