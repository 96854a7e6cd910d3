// Products of a warpgroup: wgmma, which only code for sm_90a may have. A warpgroup is four warps,
// the first one's number a multiple of four; all its 128 threads issue the same products.
// emulated/gpu/warpgroup.h is its twin for the CPU.
//
// A product is asynchronous: from its issue to the wait for its group nobody may read or write the
// registers of d, or write those of a or what it reads of shared memory. How it is asked for:
//   of shared memory that threads have written: FenceShared by each of them, then a barrier
//   FenceProducts(registers of the products to come), again after every wait
//   AddProduct.., CommitProducts, WaitForProducts<groups left>(registers of what is then there)
// The registers are named so that the compiler moves no access to them over a fence or a wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nv/target>

#include "core/cuda/matrix_in_shared.h"
#include "gpu/primitives.h"

namespace twinstream::gpu {

constexpr int kWarpgroupThreads = 4 * kWarpLanes;

// Whether the code being compiled, for one kind of card, may have products of warpgroups: a kernel
// that has them is, in all other code, a Trap.
__device__ constexpr bool HasWarpgroupProducts() {
  NV_IF_ELSE_TARGET(NV_HAS_FEATURE_SM_90a, (return true;), (return false;))
}
__device__ inline void Trap() { __trap(); }

// In the window of shared memory.
__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// What this thread has written to shared memory, copies that it has waited for included, products
// may read after a barrier that follows.
__device__ inline void FenceShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

namespace internal {
__device__ inline void Pin(float& value) { asm volatile("" : "+f"(value)::"memory"); }
__device__ inline void Pin(uint32_t& value) { asm volatile("" : "+r"(value)::"memory"); }
template <class Element, size_t kCount>
__device__ void Pin(Element (&values)[kCount]) {
#pragma unroll
  for (size_t i = 0; i < kCount; ++i) Pin(values[i]);
}
}  // namespace internal

// Arrays of float or uint32_t, of any dimensions, here and below.
template <class... Registers>
__device__ void FenceProducts(Registers&... registers) {
  (internal::Pin(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// This thread's products since the last commit are one group.
__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most so many of the youngest groups are under way.
template <int kGroupsLeft, class... Registers>
__device__ void WaitForProducts(Registers&... registers) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroupsLeft) : "memory");
  (internal::Pin(registers), ...);
}

// d += a b or, unless `accumulate`, d = a b: a [64, 16], b [16, 8 tiles] bf16, d float32. Of each,
// warp w of the warpgroup has rows 16 w .. 16 w + 15, its lane 4 g + p of them
//   a[i]: rows g + 8 (i % 2), columns 2 p + 8 (i / 2) and the next
//   d[n][i]: row g + 8 (i / 2), column 8 n + 2 p + i % 2
// which is what MmaBFloat16 has of a, and what Sums of one row tile are.
template <Major kMajor>
__device__ void AddProduct(float (&d)[8][4], const uint32_t (&a)[4], MatrixInShared<kMajor> b,
                           bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, accumulate, 1, 1, %38;\n"
      "}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"(int{accumulate}),
        "n"(kMajor == Major::kMN ? 1 : 0));
}
template <Major kMajor>
__device__ void AddProduct(float (&d)[16][4], const uint32_t (&a)[4], MatrixInShared<kMajor> b,
                           bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, accumulate, 1, 1, %70;\n"
      "}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),
        "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),
        "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]),
        "+f"(d[11][3]), "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]),
        "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]),
        "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]), "+f"(d[15][1]),
        "+f"(d[15][2]), "+f"(d[15][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"(int{accumulate}),
        "n"(kMajor == Major::kMN ? 1 : 0));
}

// The same of a in shared memory, all 64 rows.
template <Major kMajor>
__device__ void AddProduct(float (&d)[8][4], MatrixInShared<Major::kK> a, MatrixInShared<kMajor> b,
                           bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, accumulate, 1, 1, 0, %35;\n"
      "}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3])
      : "l"(a.descriptor), "l"(b.descriptor), "r"(int{accumulate}),
        "n"(kMajor == Major::kMN ? 1 : 0));
}

}  // namespace twinstream::gpu
