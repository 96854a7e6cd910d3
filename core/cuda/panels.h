// Tiles as Hopper's products of warpgroups read them.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"
#include "core/cuda/matrix_in_shared.h"
#include "gpu/primitives.h"
#include "gpu/warpgroup.h"

namespace twinstream::gpu {

// kRows rows of kColumns bf16 in shared memory, in panels of 64 columns: a row of a panel is 128
// bytes, whose chunks of 16 are permuted by the row as the swizzle of MatrixInShared wants it.
template <int kRows, int kColumns>
struct Panels {
  static_assert(kRows % 16 == 0 && kColumns % 64 == 0);
  static constexpr int kPanelBytes = kRows * 128, kAtomBytes = 8 * 128;
  static constexpr int64_t kBytes = int64_t{kPanelBytes} * (kColumns / 64);

  BFloat16* data;  // aligned to 1024 bytes

  // As Tile::At.
  __device__ BFloat16* At(int row, int even, int next) const {
    return data + even / 8 * (kRows * 64) + row * 64 + ((even % 8 + next) ^ (row & 7)) * 8;
  }

  // The transpose [kColumns, kRows] as right operand: its rows 16 step .. 16 step + 15.
  __device__ MatrixInShared<Major::kK> Transpose(int step) const { return LeftRows(0, step); }
  // 64 rows from first_row on, a multiple of 8, as left operand: their columns 16 step ..
  // 16 step + 15.
  __device__ MatrixInShared<Major::kK> LeftRows(int first_row, int step) const {
    const int offset = step / 4 * kPanelBytes + first_row * 128 + step % 4 * 32;
    return MatrixInShared<Major::kK>::At(SharedAddress(data) + offset, 16, kAtomBytes);
  }
  // Rows 16 step .. 16 step + 15 [16, kColumns] as right operand.
  __device__ MatrixInShared<Major::kMN> Rows(int step) const {
    const int offset = step * 2 * kAtomBytes;
    return MatrixInShared<Major::kMN>::At(SharedAddress(data) + offset, kPanelBytes, kAtomBytes);
  }
};

// Until what all threads of the block have started to copy is there for products.
__device__ inline void AwaitTiles() {
  WaitForCopies<0>();
  FenceShared();
  SyncBlock();
}

}  // namespace twinstream::gpu
