// What a kernel needs of the card beyond plain C++, and how it is launched. Every PTX instruction
// of the project is here or, of Hopper's warpgroups, in gpu/warpgroup.h. emulated/gpu/primitives.h
// is its twin for the CPU: CMake chooses one by include path.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "core/bfloat16.h"
#include "core/cuda/check.h"
#include "core/cuda/stream.h"
#include "core/cuda/workspace.h"

namespace twinstream::gpu {

constexpr int kWarpLanes = 32;

struct LaunchShape {
  dim3 blocks, threads;      // blocks.x up to 2^31 - 1, y and z up to 65535; at most 1024 threads
  int64_t shared_bytes = 0;  // of each block, at most kSharedBytesOfABlock (core/cuda/workspace.h)
};

// kernel<<<...>>>(arguments...) on the stream. `name` is for messages.
template <class... Parameters, class... Arguments>
void Launch(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape,
            Stream stream, Arguments... arguments) {
  const auto shared = static_cast<size_t>(shape.shared_bytes);
  if (shared > 48 * 1024) {  // more than a kernel gets unasked
    // The same for every launch: the limit is the kernel's, which a graph or another thread may be
    // about to launch with more than this one has.
    Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(kSharedBytesOfABlock)),
          name);
  }
  kernel<<<shape.blocks, shape.threads, shared, stream>>>(arguments...);
  Check(cudaGetLastError(), name);
}

// The block's shared memory, LaunchShape::shared_bytes of it, aligned to 1024 bytes.
template <class T>
__device__ T* SharedMemory() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return reinterpret_cast<T*>(memory);
}

__device__ inline void SyncBlock() { __syncthreads(); }
__device__ inline void SyncWarp() { __syncwarp(); }
// Of all 32 lanes, which take part together.
template <class T>
__device__ T ShuffleXor(T value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFU, value, mask);
}
template <class T>
__device__ T Shuffle(T value, int lane) {
  return __shfl_sync(0xFFFFFFFFU, value, lane);
}

__device__ inline float ReciprocalSqrt(float x) { return rsqrtf(x); }  // within 2 ulp
__device__ inline float Exp(float x) { return expf(x); }
// One instruction: within 2^-22 of the result; below 2^-126 it is 0.
__device__ inline float FastExp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
__device__ inline float Log(float x) { return logf(x); }

// The value, unknown to the compiler from here on: what follows from it is computed anew where it
// is used, instead of taking registers all through a loop.
__device__ inline int Opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// 16 bytes that nobody will want soon again: they leave the caches first.
__device__ inline uint4 LoadStreaming(const uint4* from) { return __ldcs(from); }
__device__ inline void StoreStreaming(uint4* to, uint4 value) { __stcs(to, value); }

// Two bf16 in one word, the first in its low half; rounded to nearest.
__device__ inline uint32_t PackBFloat16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline float LowOf(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float HighOf(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000U); }

// d += a b of a warp: a [16, 16], b [16, 8] bf16, d float32. Lane 4 g + p holds
//   a[i]: rows g + 8 (i % 2), columns 2 p + 8 (i / 2) and the next
//   b[i]: rows 2 p + 8 i and the next, column g
//   d[i]: row g + 8 (i / 2), column 2 p + i % 2
__device__ inline void MmaBFloat16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 x 8 matrices of bf16 from shared memory: lanes 8 i .. 8 i + 7 give the addresses of the
// rows of matrix i, 16 bytes each, aligned to 16. Lane 4 g + p gets in to[i] row g, columns 2 p and
// the next; transposed: rows 2 p and the next of column g.
__device__ inline void LoadMatrices(uint32_t (&to)[4], const BFloat16* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}
__device__ inline void LoadMatricesTransposed(uint32_t (&to)[4], const BFloat16* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}

// 16 bytes from global to shared memory, both aligned to 16, without passing through registers;
// zeros when not `valid` (then nothing is read). They are there once their thread has waited for
// their group, and for other threads after a barrier that follows.
__device__ inline void CopyAsync16(void* shared, const void* global, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(bytes)
               : "memory");
}
// The copies of this thread since the last commit are one group.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most so many of the youngest groups are under way.
template <int kGroupsLeft>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}

}  // namespace twinstream::gpu
