// How Hopper's products of warpgroups (gpu/warpgroup.h) find a matrix in shared memory: the 64 bits
// of PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", for bf16 with the swizzle
// of 128 bytes. The offsets' meaning is that of CUTLASS's canonical layouts
// (include/cute/atom/mma_traits_sm90_gmma.hpp, make_gmma_desc).
//
// Memory is rows of 128 bytes, whose 16-byte chunks are permuted: bits 4 to 6 of an address are
// those of the unpermuted place, each XOR the one of bits 7 to 9. Eight rows, 1024 bytes and
// aligned to as many, are an atom.
#pragma once

#include <cstdint>

namespace twinstream::gpu {

// Of an operand b [K, N], K the index of the sum. The transpose of a left operand [M, K] is such a
// b: it is always kK.
enum class Major {
  kK,   // a row is 64 of K, of one column of b; an atom is 64 of K for 8 of N
  kMN,  // a row is 64 of N, of one row of b; an atom is 64 of N for 8 of K
};

// 16 of K. Bits 0 to 13: address / 16; 16 to 29: leading / 16; 32 to 45: stride / 16; 49 to 51: the
// number of the first row in its atom, here 0; 62 and 63: the swizzle, 1 for 128 bytes.
template <Major kMajor>
struct MatrixInShared {
  uint64_t descriptor;

  // address: of the first element before the permutation, in the window of shared memory; its row
  // is the first of an atom. stride: bytes from an atom to the next 8 of N (kK), of K (kMN).
  // leading: from one to the next 64 of N (kMN); not read for kK, whose 16 of K lie in one row.
  __device__ static MatrixInShared At(uint32_t address, int leading, int stride) {
    return {uint64_t{(address & 0x3FFFFU) >> 4} |
            uint64_t{static_cast<uint32_t>(leading) >> 4} << 16 |
            uint64_t{static_cast<uint32_t>(stride) >> 4} << 32 | uint64_t{1} << 62};
  }
};

}  // namespace twinstream::gpu
