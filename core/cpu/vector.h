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

inline float SumOfLanes(Vector vector) {
  using Four = float __attribute__((vector_size(4 * sizeof(float))));
  Four fours[kVectorLanes / 4];
  std::memcpy(fours, &vector, sizeof(vector));
  Four sum = fours[0] + fours[1];
  if constexpr (kVectorLanes == 16) sum += fours[2] + fours[3];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
