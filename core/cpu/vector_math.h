// Loops that become vector instructions, and elementary functions written so that they do: no
// branches, no calls, no tables. g++ needs -fno-trapping-math and -fno-math-errno for that
// (CMakeLists.txt sets them for core/cpu).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "core/cpu/vector.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

// Calls f(j) for j in [0, count), several at a time. No call may read what another writes; writing
// over the element that the same call read is fine. Let f capture by value: captured references
// must be loaded again after every store.
template <class F>
void VectorLoop(int64_t count, F f) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) f(j);
}

// to[j] <- from[j], converted: exactly, or rounded to bf16.
template <class To, class From>
void CopyRow(int64_t count, const From* from, To* to) {
  if constexpr (std::is_same_v<To, From>) {
    std::copy_n(from, count, to);
  } else {
    VectorLoop(count, [=](int64_t j) { to[j] = from[j]; });
  }
}

// The same of [rows, columns]. Strides are elements from row to row.
template <class To, class From>
void CopyRows(int64_t rows, int64_t columns, const From* from, int64_t from_stride, To* to,
              int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i) CopyRow(columns, from + i * from_stride, to + i * to_stride);
}

// Sum of f(j) over j in [0, count), in an order that depends on count alone. f(j) may also write,
// as in VectorLoop. There are lanes of several vectors, whose operations need not wait for each
// other; they are added by halves: one after another they would wait for each other, which costs a
// row of a head more than all the rest.
template <class F>
auto VectorSum(int64_t count, F f) {
  constexpr int64_t kLanes = 32;
  decltype(f(int64_t{0})) lanes[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t j = 0; j < whole; j += kLanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += f(j + lane);
  }
#pragma omp simd
  for (int64_t j = whole; j < count; ++j) lanes[j - whole] += f(j);
#pragma GCC unroll 5
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
#pragma omp simd
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// e^x of a float, or of every lane of a Vector, within 2 ulp. Results below 2^-125.5 are zero,
// above the largest float infinite; NaN stays NaN.
//   e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln 2 / 2, e^r by the minimax polynomial of Cephes.
template <class V>
V Exp(V x) {
  using Words = std::conditional_t<std::is_same_v<V, float>, uint32_t, WordVector>;
  constexpr float kLowest = -87.3F;         // n = -126: the scale below is zero
  constexpr float kHighest = 89;            // past ln of the largest float: overflows below
  constexpr float kLog2E = 1.44269504F;     // 1 / ln 2
  constexpr float kLn2High = 0.693359375F;  // ln 2 in two parts: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRoundToInteger = 12582912;  // 1.5 * 2^23: no bits are left for a fraction
  x = x > kHighest ? kHighest : x;
  x = x < kLowest ? kLowest : x;
  const V shifted = x * kLog2E + kRoundToInteger;  // its low bits hold n
  const V n = shifted - kRoundToInteger;
  const V r = (x - n * kLn2High) - n * kLn2Low;
  V p = 1.9875691500e-4F * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1;
  // 2^(n-1), then twice that: 2^128 itself is no float.
  const Words half_scale = (std::bit_cast<Words>(shifted) << 23) + (126U << 23);
  return p * std::bit_cast<V>(half_scale) * 2;
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
