// What operations need of a card's memory beside their tensors: bytes, as functions of sizes alone.
// The operations themselves (core/cuda/*.cu) take what these say; tests run them with just that
// much, and hold what the rules of jobs (proto/cuda_rules.h) let through against what there is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/check.h"

namespace twinstream {

// Memory of the device for what kernels hand each other within one operation.
struct Workspace {
  std::byte* data = nullptr;  // aligned to 256 bytes
  int64_t bytes = 0;

  // The first bytes of it, so many; dies when there are fewer.
  template <class T>
  T* As(int64_t needed) const {
    Check(needed <= bytes, "an operation needs %d bytes of workspace, there are %d", needed, bytes);
    return reinterpret_cast<T*>(data);
  }
};
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

// The most shared memory that a block of any kernel asks for: products of groups of bf16
// (grouped_matmul.cu). Attention's gradient of keys asks for 143488 in float32 with head_dim 512,
// in bf16 for 132096 with head_dim 128.
constexpr int64_t kSharedBytesOfABlock = 147456;

// EmbeddingBackward sorts tokens digit by digit, in chunks.
constexpr int kSortDigitBits = 9;  // two passes for up to 2^18 rows
constexpr int kSortDigits = 1 << kSortDigitBits;
constexpr int kSortChunk = 256;

// Two arrays of entries [N], each a row and a token; ranks [N]; counts [kSortDigits, chunks].
constexpr int64_t EmbeddingBackwardBytes(int64_t N) {
  const int64_t chunks = (N + kSortChunk - 1) / kSortChunk;
  return int64_t{sizeof(int32_t)} * (int64_t{4} * N + N + kSortDigits * chunks);
}

// RouteTokens cuts tokens into parts, each a block's: of 32, or more where they would be too many.
struct RouterParts {
  int64_t tokens, parts;
};
constexpr RouterParts RouterPartsOf(int64_t N) {
  constexpr int64_t kTokens = 32, kMostParts = 1024;
  const int64_t tokens = std::max(kTokens, (N + kMostParts - 1) / kMostParts);
  return {tokens, (N + tokens - 1) / tokens};
}

// Float64 sums [E + 1, parts], and counts [E, parts].
constexpr int64_t RouteTokensBytes(int64_t N, int64_t E) {
  return RouterPartsOf(N).parts *
         ((E + 1) * int64_t{sizeof(double)} + E * int64_t{sizeof(int32_t)});
}

// QkvBackward, of up to so many blocks: sums [3, blocks, D] of the gradients of the norms' weights.
constexpr int64_t kMostQkvBlocks = 1024;  // as many on every card, so the same bits
constexpr int64_t QkvBackwardBytes(int64_t blocks, int64_t D) {
  return 3 * blocks * D * int64_t{sizeof(float)};
}

// Attention's backward, of each key head that it has at a time, at least one: the deltas of T
// queries of `group` query heads.
constexpr int64_t AttentionBackwardBytes(int64_t group, int64_t T) {
  return group * T * int64_t{sizeof(float)};
}

// ResidualForward and ResidualBackward, of each block, at least one: rows of float32, for each
// weight whose gradient it sums and for a row that its registers do not hold.
constexpr int64_t ResidualBytes(int64_t rows, int64_t padded_width) {
  return rows * padded_width * int64_t{sizeof(float)};
}

// A product of mixed types: of each bf16 matrix, or of a part of its rows, a copy as float32.
constexpr int64_t WideCopyBytes(int64_t elements) {
  constexpr int64_t kAlignment = 256;
  return (elements * int64_t{sizeof(float)} + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace twinstream
