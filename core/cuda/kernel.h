// What kernels share: 16-byte packs of activations and sums over warps and blocks. Reductions have
// a fixed order.
#pragma once

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

template <class Number>
__device__ Number WarpSum(Number value) {
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) value += ShuffleXor(value, mask);
  return value;
}
__device__ inline float WarpMax(float value) {
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2)
    value = fmaxf(value, ShuffleXor(value, mask));
  return value;
}

// Of all threads of a block of whole warps, for all of them. sums: shared, one per warp; free again
// after the next barrier.
template <class Number>
__device__ Number BlockSum(Number value, Number* sums) {
  value = WarpSum(value);
  const int warps = static_cast<int>(blockDim.x) / kWarpLanes;
  if (threadIdx.x % kWarpLanes == 0) sums[threadIdx.x / kWarpLanes] = value;
  SyncBlock();
  Number total = 0;
  for (int warp = 0; warp < warps; ++warp) total += sums[warp];
  return total;
}

}  // namespace twinstream::gpu
