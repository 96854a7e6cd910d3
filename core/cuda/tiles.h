// Tensor cores as kernels use them: tiles of bf16 in shared memory, products of a warp's rows, and
// the way from and to tensors. A warp's results lie in its registers as MmaBFloat16 leaves them:
// lane 4 g + p holds rows g and g + 8 of every tile of 16 rows, columns 2 p and 2 p + 1 of every
// tile of 8 columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cuda/kernel.h"
#include "gpu/primitives.h"

namespace twinstream::gpu {

struct alignas(8) FloatPair {
  float first, second;
};

// A tensor of activations whose type shows at run time: for what a kernel touches once. Places are
// counted in elements; of a pair they are even, of eight multiples of eight.
struct Activations {
  std::byte* data;
  bool bf16;

  template <class T>
  __device__ T* As() const {
    return reinterpret_cast<T*>(data);
  }
  __device__ float Load(int64_t place) const {
    return bf16 ? static_cast<float>(As<BFloat16>()[place]) : As<float>()[place];
  }
  __device__ void Store(int64_t place, float value) const {
    if (bf16) {
      As<BFloat16>()[place] = value;
    } else {
      As<float>()[place] = value;
    }
  }
  __device__ FloatPair LoadPair(int64_t place) const {
    if (!bf16) return *reinterpret_cast<const FloatPair*>(As<float>() + place);
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(As<BFloat16>() + place);
    return {LowOf(pair), HighOf(pair)};
  }
  __device__ void StorePair(int64_t place, FloatPair pair) const {
    if (bf16) {
      *reinterpret_cast<uint32_t*>(As<BFloat16>() + place) = PackBFloat16(pair.first, pair.second);
    } else {
      *reinterpret_cast<FloatPair*>(As<float>() + place) = pair;
    }
  }
  __device__ Pack<BFloat16> LoadEight(int64_t place) const {
    if (bf16) return LoadPack(As<BFloat16>() + place);
    const Pack<float> low = LoadPack(As<float>() + place), high = LoadPack(As<float>() + place + 4);
    return {{low.values[0], low.values[1], low.values[2], low.values[3], high.values[0],
             high.values[1], high.values[2], high.values[3]}};
  }
};

// Rows of bf16 in device memory, `stride` elements apart.
struct StridedRows {
  const BFloat16* first;
  int stride;

  __device__ const BFloat16* At(int row) const { return first + int64_t{row} * stride; }
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

// Starts to copy rows [begin, begin + kRows), of which those below `end` exist, D values each, a
// multiple of 8; both aligned to 16 bytes. The others, and columns beyond D, become zeros. to: a
// Tile of kD columns, or Panels.
template <int kRows, int kD, int kThreads, class TileOfRows>
__device__ void CopyRows(TileOfRows to, const StridedRows& from, int begin, int end, int D) {
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

}  // namespace twinstream::gpu
