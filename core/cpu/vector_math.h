// Loops that become vector instructions, for which g++ needs -fno-trapping-math and -fno-math-errno
// (CMakeLists.txt sets them for core/cpu); and 2^x and e^x of a vector.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/cpu/vector.h"
#include "isa/vector_instructions.h"

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

// 2^x of every lane, with a relative error of at most 2^-23. Results below 2^-125 may be zero, and
// below 2^-126 are, so that none is denormal; those above the largest float are infinite; NaN stays
// NaN.
//   2^x = 2^n 2^r, n = round(x), |r| <= 1/2, 2^r by the minimax polynomial of Cephes.
inline Vector Exp2(Vector x) {
  constexpr float kLowest = -126;
  constexpr float kHighest = 129;  // 2^129 is infinite already
  const Vector limited = Min(x, AllLanes(kHighest));
  const Vector n = (limited + kRoundToInteger) - kRoundToInteger, r = limited - n;
  Vector p = 1.535336188319500e-4F * r + 1.339887440266574e-3F;
  p = p * r + 9.618437357674640e-3F;
  p = p * r + 5.550332471162809e-2F;
  p = p * r + 2.402264791363012e-1F;
  p = p * r + 6.931472028550421e-1F;
  p = p * r + 1;
  const Vector power = TimesPowerOfTwo(p, n);
  return limited < kLowest ? Vector{} : power;
}

constexpr float kLog2E = 1.44269504F;  // 1 / ln 2

// e^x as 2^(x / ln 2), whose argument is rounded: the relative error is at most (1 + |x|) 2^-23.
inline Vector Exp(Vector x) { return Exp2(kLog2E * x); }

}  // namespace twinstream::TWINSTREAM_CPU_ISA
