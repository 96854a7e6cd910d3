// Loops over rows of float32 or bf16, written for one vector at a time: for rows of bf16, which the
// compiler's own vectorisation rounds slowly, and for several sums or results in one loop.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/bfloat16.h"
#include "core/cpu/vector.h"
#include "isa/vector_instructions.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

inline Vector LoadElements(const float* from) { return LoadVector(from); }
inline Vector LoadElements(const BFloat16* from) {
  HalfVector halves;
  std::memcpy(&halves, from, sizeof(halves));
  return WidenHalves(halves);
}

// Stores return what a load would find: the vector as it was rounded.
inline Vector StoreElements(Vector vector, float* to) {
  StoreVector(to, vector);
  return vector;
}
inline Vector StoreElements(Vector vector, BFloat16* to) {
  const HalfVector halves = RoundHalves(vector);
  std::memcpy(to, &halves, sizeof(halves));
  return WidenHalves(halves);
}
inline Vector StoreElementsNonTemporal(Vector vector, float* to) {
  StoreVectorNonTemporal(to, vector);
  return vector;
}
inline Vector StoreElementsNonTemporal(Vector vector, BFloat16* to) {
  const HalfVector halves = RoundHalves(vector);
  StoreHalvesNonTemporal(to, halves);
  return WidenHalves(halves);
}

// What Store returns, of a row of T, without storing.
template <class T>
Vector RoundedTo(Vector vector) {
  if constexpr (std::is_same_v<T, BFloat16>) return WidenHalves(RoundHalves(vector));
  return vector;
}

// Elements [first, first + kVectorLanes) of rows.
struct WholeVector {
  int64_t first;

  template <class T>
  Vector Load(const T* row) const {
    return LoadElements(row + first);
  }
  // Where lanes beyond a row's end must not be zeros.
  Vector LoadOr(float, const float* row) const { return Load(row); }
  // Soon to be loaded, if there is such a row.
  template <class T>
  void Prefetch(const T* row) const {
    if (row != nullptr) __builtin_prefetch(row + first, 0, 2);  // to the second-level cache
  }
  template <class T>
  Vector Store(Vector vector, T* row) const {
    return StoreElements(vector, row + first);
  }
  // Past the caches, into a row aligned to whole vectors of T.
  template <class T>
  Vector StoreNonTemporal(Vector vector, T* row) const {
    return StoreElementsNonTemporal(vector, row + first);
  }
};

// Elements [first, first + count) of rows, fewer than a vector's; the other lanes are loaded as
// zeros.
struct PartOfVector {
  int64_t first, count;

  template <class T>
  Vector Load(const T* row) const {
    T part[kVectorLanes] = {};
    std::copy_n(row + first, count, part);
    return LoadElements(part);
  }
  Vector LoadOr(float others, const float* row) const {
    Vector vector = AllLanes(others);
    for (int64_t i = 0; i < count; ++i) vector[i] = row[first + i];
    return vector;
  }
  template <class T>
  void Prefetch(const T* row) const {
    WholeVector{first}.Prefetch(row);
  }
  template <class T>
  Vector Store(Vector vector, T* row) const {
    T part[kVectorLanes];
    const Vector stored = StoreElements(vector, part);
    std::copy_n(part, count, row + first);
    return stored;
  }
  template <class T>
  Vector StoreNonTemporal(Vector vector, T* row) const {
    return Store(vector, row);
  }
};

// Calls f(at) for the whole vectors of [0, count), `at` a WholeVector.
template <class F>
void ForWholeVectors(int64_t count, F f) {
  for (int64_t first = 0; first + kVectorLanes <= count; first += kVectorLanes) {
    f(WholeVector{first});
  }
}

// The same of all vectors, `at` a PartOfVector at the end where one is left.
template <class F>
void ForVectors(int64_t count, F f) {
  ForWholeVectors(count, f);
  const int64_t rest = count % kVectorLanes;
  if (rest > 0) f(PartOfVector{count - rest, rest});
}

// Of which e^x is zero.
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Largest of row [count]; -infinity of nothing.
inline float MaxOfRow(int64_t count, const float* row) {
  Vector largest = AllLanes(kMinusInfinity);
  ForVectors(count,
             [row, &largest](auto at) { largest = Max(largest, at.LoadOr(kMinusInfinity, row)); });
  return MaxOfLanes(largest);
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
