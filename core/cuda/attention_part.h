// Parts of a call of attention, computed one after another where not all heads fit a workspace.
#pragma once

#include <cstdint>

#include "core/ops.h"

namespace twinstream {

// Whole sequences, or some key heads of one sequence, each with its query heads. Its numbers divide
// those of the shape.
struct PartSize {
  int64_t sequences = 0, key_heads = 0;
};

// Where a part begins in each tensor of a call, in elements.
struct PartPlace {
  int64_t queries = 0;  // of q and dq [B, H, T, D]
  int64_t keys = 0;     // of k, v, dk and dv [B, K, T, D]
  int64_t tokens = 0;   // of out and dout [B*T, H*D]
  int64_t lse = 0;      // of lse [B, H, T]
};

inline int64_t LargestOtherDivisor(int64_t number) {
  int64_t factor = 2;
  while (number % factor != 0) ++factor;
  return number / factor;
}

// The next smaller size: of fewer sequences, or of one sequence fewer heads. False of a single key
// head.
inline bool MakeSmaller(PartSize& size) {
  int64_t& number = size.sequences > 1 ? size.sequences : size.key_heads;
  if (number == 1) return false;
  number = LargestOtherDivisor(number);
  return true;
}

// compute: called with the PartPlace of every part of the shape.
template <class Compute>
void ForEachPart(const AttentionShape& shape, PartSize size, const Compute& compute) {
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t b = 0; b < shape.batch; b += size.sequences) {
    for (int64_t kv = 0; kv < shape.kv_heads; kv += size.key_heads) {
      const int64_t query_head = b * shape.heads + kv * group;
      compute(PartPlace{.queries = query_head * shape.sequence * shape.head_dim,
                        .keys = (b * shape.kv_heads + kv) * shape.sequence * shape.head_dim,
                        .tokens = (b * shape.sequence * shape.heads + kv * group) * shape.head_dim,
                        .lse = query_head * shape.sequence});
    }
  }
}

}  // namespace twinstream
