// The emulated twin of native/gpu/warpgroup.h, where every function is described.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "core/cuda/matrix_in_shared.h"
#include "gpu/emulator.h"
#include "gpu/pending_products.h"
#include "gpu/primitives.h"

namespace twinstream::gpu {

constexpr int kWarpgroupThreads = 4 * kWarpLanes;

constexpr bool HasWarpgroupProducts() { return true; }
inline void Trap() { Die("an emulated kernel has trapped"); }

inline uint32_t SharedAddress(const void* shared) { return AddressInShared(shared); }

inline void FenceShared() { FenceCopies(); }

template <class... Registers>
void FenceProducts(Registers&... registers) {
  MeetWarp(Meeting::kProductFence);
  (LetProductsUse(&registers, sizeof(registers)), ...);
}
inline void CommitProducts() { CommitPendingProducts(); }
template <int kGroupsLeft, class... Registers>
void WaitForProducts(Registers&... registers) {
  WaitForPendingProducts(kGroupsLeft);
  (CheckNotPending(&registers, sizeof(registers)), ...);
}
template <size_t kColumnTiles, Major kMajor>
void AddProduct(float (&d)[kColumnTiles][4], const uint32_t (&a)[4], MatrixInShared<kMajor> b,
                bool accumulate) {
  static_assert(kColumnTiles == 8 || kColumnTiles == 16);
  IssueProduct({.d = &d[0][0],
                .column_tiles = static_cast<int>(kColumnTiles),
                .a = a,
                .a_in_shared = 0,
                .b = b.descriptor,
                .major = kMajor,
                .accumulate = accumulate});
}
template <Major kMajor>
void AddProduct(float (&d)[8][4], MatrixInShared<Major::kK> a, MatrixInShared<kMajor> b,
                bool accumulate) {
  IssueProduct({.d = &d[0][0],
                .column_tiles = 8,
                .a = nullptr,
                .a_in_shared = a.descriptor,
                .b = b.descriptor,
                .major = kMajor,
                .accumulate = accumulate});
}

}  // namespace twinstream::gpu
