// Vectors of floats, with the compiler's arithmetic operators.
#pragma once

#include <cstdint>
#include <cstring>

#include "isa/product_shape.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

using Vector = float __attribute__((vector_size(kVectorLanes * sizeof(float))));
using WordVector = uint32_t __attribute__((vector_size(kVectorLanes * sizeof(uint32_t))));
using HalfVector = uint16_t __attribute__((vector_size(kVectorLanes * sizeof(uint16_t))));

inline Vector LoadVector(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

inline void StoreVector(float* to, Vector vector) { std::memcpy(to, &vector, sizeof(vector)); }

// Subtracting zeros changes no value; adding them would make +0 of -0.
inline Vector AllLanes(float value) { return value - Vector{}; }

// 1.5 * 2^23: what it is added to has no bits left for a fraction, and its lowest hold an integer.
constexpr float kRoundToInteger = 12582912;

// Combines all lanes, by halves.
template <class Combine>
float CombineLanes(Vector vector, Combine combine) {
  using Four = float __attribute__((vector_size(4 * sizeof(float))));
  Four fours[kVectorLanes / 4];
  std::memcpy(fours, &vector, sizeof(vector));
  Four four = combine(fours[0], fours[1]);
  if constexpr (kVectorLanes == 16) four = combine(four, combine(fours[2], fours[3]));
  return combine(combine(four[0], four[1]), combine(four[2], four[3]));
}

inline float SumOfLanes(Vector vector) {
  return CombineLanes(vector, [](auto a, auto b) { return a + b; });
}

inline float MaxOfLanes(Vector vector) {
  return CombineLanes(vector, [](auto a, auto b) { return a > b ? a : b; });
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
