// Products of warpgroups between their issue and the wait for them, where they happen: as late as a
// card may do them, each warp's rows at that warp's wait. Shared memory is read then. Until then d
// is NaN. What the process ends of, with the kernel's name:
//   a card of another compute capability than 9.0
//   d or a not fenced since the last wait; d written, or a changed, before the wait
//   a warp whose lanes, or a warpgroup whose warps, issue different products
//   a descriptor off its atoms, of another swizzle, or of memory that the block does not have
//   asynchronous copies that their thread did not fence before the block's last barrier
//   products that a thread never commits or never waits for
// What is not found: ordinary stores to shared memory without a fence.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cuda/matrix_in_shared.h"

namespace twinstream::gpu {

// Of one thread: see AddProduct in native/gpu/warpgroup.h.
struct IssuedProduct {
  float* d;
  int column_tiles;
  const uint32_t* a;  // four; null: it is in shared memory
  uint64_t a_in_shared;
  uint64_t b;
  Major major;
  bool accumulate;
};

// For the fiber that runs.
uint32_t AddressInShared(const void* shared);
void LetProductsUse(const void* registers, size_t bytes);
void IssueProduct(const IssuedProduct& product);
void CommitPendingProducts();
void WaitForPendingProducts(int groups_left);  // all lanes of a warp together
void CheckNotPending(const void* registers, size_t bytes);

// Of a block, before its threads run and after they have returned.
void BeginPendingProducts();
void CheckNoPendingProducts();

}  // namespace twinstream::gpu
