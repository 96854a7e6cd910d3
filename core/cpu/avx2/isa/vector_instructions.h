// What g++ has no way to say of vectors, on AVX2. The include path chooses between this and its
// twin in avx512.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "core/cpu/vector.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

// Exactly. (g++ 12 makes four operations of __builtin_convertvector.)
inline Vector WidenHalves(HalfVector halves) {
  return std::bit_cast<Vector>(
      std::bit_cast<WordVector>(_mm256_cvtepu16_epi32(std::bit_cast<__m128i>(halves))) << 16);
}

// Bits of bf16, rounded to the nearest, ties to even; as BFloat16's own rounding, NaNs too.
inline HalfVector RoundHalves(Vector v) {
  const auto wide = std::bit_cast<WordVector>(v);
  const WordVector to_nearest = 0x7FFF + ((wide >> 16) & 1), quiet = ~wide & 0x400000;
  return __builtin_convertvector((wide + (v != v ? quiet : to_nearest)) >> 16, HalfVector);
}

// The same of two vectors: lane i holds that of even[i] below that of odd[i].
inline WordVector RoundPairs(Vector even, Vector odd) {
  const auto wide = [](HalfVector halves) { return __builtin_convertvector(halves, WordVector); };
  return wide(RoundHalves(even)) | wide(RoundHalves(odd)) << 16;
}

// a b + c, rounded once. Where the compiler chooses which product of a sum to fuse, it may choose
// otherwise in another loop.
inline Vector MultiplyAdd(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }

// Of every lane; a where one is NaN. (g++ 12 makes a comparison and a choice of a > b ? b : a.)
inline Vector Min(Vector a, Vector b) { return _mm256_min_ps(b, a); }
inline Vector Max(Vector a, Vector b) { return _mm256_max_ps(b, a); }

// v 2^n, v in [1/2, 2) and n a whole number from -125 to 129. Of others below: anything.
inline Vector TimesPowerOfTwo(Vector v, Vector n) {
  // 2^(n-1), then twice that: 2^128 itself is no float.
  const auto half = (std::bit_cast<WordVector>(n + kRoundToInteger) << 23) + (126U << 23);
  return v * std::bit_cast<Vector>(half) * 2;
}

// Past the caches; `to` is aligned to what is stored. Others see it after a FenceNonTemporal.
inline void StoreVectorNonTemporal(float* to, Vector v) { _mm256_stream_ps(to, v); }
inline void StoreHalvesNonTemporal(void* to, HalfVector v) {
  _mm_stream_si128(static_cast<__m128i*>(to), std::bit_cast<__m128i>(v));
}
inline void FenceNonTemporal() { _mm_sfence(); }

}  // namespace twinstream::TWINSTREAM_CPU_ISA
