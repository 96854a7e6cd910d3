// What kernels share: accesses of 16 bytes, the split of an array over threads, reductions over
// lanes, warps and blocks, each in a fixed order.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/bfloat16.h"
#include "gpu/primitives.h"

namespace twinstream::gpu {

// What 16 bytes hold of an activation type, as float32.
template <class T>
constexpr int kPack = 16 / sizeof(T);

template <class T>
struct Pack {
  float values[kPack<T>];
};

__device__ inline float AsFloat(uint32_t bits) { return std::bit_cast<float>(bits); }
__device__ inline uint32_t AsBits(float value) { return std::bit_cast<uint32_t>(value); }

__device__ inline Pack<float> Unpacked(std::type_identity<float> /*type*/, uint4 bits) {
  return {{AsFloat(bits.x), AsFloat(bits.y), AsFloat(bits.z), AsFloat(bits.w)}};
}
__device__ inline Pack<BFloat16> Unpacked(std::type_identity<BFloat16> /*type*/, uint4 bits) {
  return {{LowOf(bits.x), HighOf(bits.x), LowOf(bits.y), HighOf(bits.y), LowOf(bits.z),
           HighOf(bits.z), LowOf(bits.w), HighOf(bits.w)}};
}
__device__ inline uint4 Packed(const Pack<float>& pack) {
  const float* v = pack.values;
  return {AsBits(v[0]), AsBits(v[1]), AsBits(v[2]), AsBits(v[3])};
}
__device__ inline uint4 Packed(const Pack<BFloat16>& pack) {
  const float* v = pack.values;
  return {PackBFloat16(v[0], v[1]), PackBFloat16(v[2], v[3]), PackBFloat16(v[4], v[5]),
          PackBFloat16(v[6], v[7])};
}

// `from`, `to`: aligned to 16 bytes.
template <class T>
__device__ Pack<T> LoadPack(const T* from) {
  return Unpacked(std::type_identity<T>(), *reinterpret_cast<const uint4*>(from));
}
template <class T>
__device__ void StorePack(T* to, const Pack<T>& pack) {
  *reinterpret_cast<uint4*>(to) = Packed(pack);
}

// kWidth elements in a row, as float32: a single one, or as many as fill one word of 8 bytes (four
// bf16) or words of 16, and aligned to it.
template <int kWidth, class T>
__device__ void LoadValues(float (&values)[kWidth], const T* from) {
  if constexpr (kWidth == 1) {
    values[0] = *from;
  } else if constexpr (kWidth * sizeof(T) == 8) {
    const uint2 bits = *reinterpret_cast<const uint2*>(from);
    values[0] = LowOf(bits.x);
    values[1] = HighOf(bits.x);
    values[2] = LowOf(bits.y);
    values[3] = HighOf(bits.y);
  } else {
    for (int i = 0; i < kWidth; i += kPack<T>) {
      const Pack<T> pack = LoadPack(from + i);
      for (int j = 0; j < kPack<T>; ++j) values[i + j] = pack.values[j];
    }
  }
}
template <int kWidth, class T>
__device__ void StoreValues(T* to, const float (&values)[kWidth]) {
  if constexpr (kWidth == 1) {
    *to = values[0];
  } else if constexpr (kWidth * sizeof(T) == 8) {
    *reinterpret_cast<uint2*>(to) = {PackBFloat16(values[0], values[1]),
                                     PackBFloat16(values[2], values[3])};
  } else {
    for (int i = 0; i < kWidth; i += kPack<T>) {
      Pack<T> pack;
      for (int j = 0; j < kPack<T>; ++j) pack.values[j] = values[i + j];
      StorePack(to + i, pack);
    }
  }
}

// Whether words of 16 bytes can be accessed at all of them.
template <class... T>
__host__ __device__ bool Aligned(const T*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

template <class Integer>
__host__ __device__ constexpr Integer CeilingOfQuotient(Integer dividend,
                                                        std::type_identity_t<Integer> divisor) {
  return (dividend + divisor - 1) / divisor;
}

// In a block of one dimension: this thread's number, its lane in its warp, its warp's number.
__device__ inline int ThisThread() { return static_cast<int>(threadIdx.x); }
__device__ inline int ThisLane() { return ThisThread() % kWarpLanes; }
__device__ inline int ThisWarp() { return ThisThread() / kWarpLanes; }

// Every stride-th item from `first` on: what one thread takes of them all.
struct Share {
  int64_t first, stride;
};
__device__ inline Share ShareOfBlock() { return {threadIdx.x, blockDim.x}; }
__device__ inline Share ShareOfGrid() {
  return {int64_t{blockIdx.x} * blockDim.x + threadIdx.x, int64_t{gridDim.x} * blockDim.x};
}

// Of a grid that shares `items` out: at most so many blocks that they run in a few waves.
inline LaunchShape ShapeFor(int64_t items, int multiprocessors) {
  constexpr int kThreads = 256;
  return {.blocks = static_cast<unsigned>(
              std::min(CeilingOfQuotient(items, kThreads), int64_t{multiprocessors} * 32)),
          .threads = kThreads};
}

// Calls f(std::integral_constant<int, width>(), i) for elements i .. i + width - 1, this thread's
// share of `elements` in packs of kWidth: whole packs where all arrays are `aligned`, else single
// elements. No thread gets other elements, or in another order, for that.
template <int kWidth, class F>
__device__ void ForEachPack(Share share, int64_t elements, bool aligned, F f) {
  for (int64_t i = share.first * kWidth; i < elements; i += share.stride * kWidth) {
    if (aligned && i + kWidth <= elements) {
      f(std::integral_constant<int, kWidth>(), i);
    } else {
      for (int64_t j = i; j < i + kWidth && j < elements; ++j) {
        f(std::integral_constant<int, 1>(), j);
      }
    }
  }
}

// f(std::integral_constant<int, width>()) for the elements that a thread may take at a time of rows
// of so many columns: kWidth where all matrices are `aligned` and every row is whole packs, else 1.
template <int kWidth = 8, class F>
void WithWidth(int64_t columns, bool aligned, F f) {
  if (aligned && columns % kWidth == 0) {
    f(std::integral_constant<int, kWidth>());
  } else {
    f(std::integral_constant<int, 1>());
  }
}

// f over the values of kLanes neighbouring lanes, a power of two, for all of them.
template <int kLanes, class Number, class F>
__device__ Number ReduceLanes(Number value, F f) {
  for (int mask = kLanes / 2; mask > 0; mask /= 2) value = f(value, ShuffleXor(value, mask));
  return value;
}
template <int kLanes, class Number>
__device__ Number LaneSum(Number value) {
  return ReduceLanes<kLanes>(value, [](Number a, Number b) { return a + b; });
}
template <class Number>
__device__ Number WarpSum(Number value) {
  return LaneSum<kWarpLanes>(value);
}
__device__ inline float WarpMax(float value) {
  return ReduceLanes<kWarpLanes>(value, [](float a, float b) { return fmaxf(a, b); });
}

// Of the values of this lane and those below.
__device__ inline int WarpPrefixSum(int value) {
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const int lower = Shuffle(value, (ThisLane() - distance) & (kWarpLanes - 1));
    if (ThisLane() >= distance) value += lower;
  }
  return value;
}

// f over the values of all threads of a block of whole warps, for all of them. of_warps: shared,
// one per warp; free again after the next barrier.
template <class Number, class F>
__device__ Number ReduceBlock(Number value, Number* of_warps, F f) {
  value = ReduceLanes<kWarpLanes>(value, f);
  const int warps = static_cast<int>(blockDim.x) / kWarpLanes;
  if (ThisLane() == 0) of_warps[ThisWarp()] = value;
  SyncBlock();
  Number result = of_warps[0];
  for (int warp = 1; warp < warps; ++warp) result = f(result, of_warps[warp]);
  return result;
}
template <class Number>
__device__ Number BlockSum(Number value, Number* sums) {
  return ReduceBlock(value, sums, [](Number a, Number b) { return a + b; });
}
// Passes over NaN.
__device__ inline float BlockMax(float value, float* maxima) {
  return ReduceBlock(value, maxima, [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace twinstream::gpu
