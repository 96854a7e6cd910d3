// What g++ has no way to say of vectors, on AVX-512 with bf16. The include path chooses between
// this and its twin in avx2.
#pragma once

#include <immintrin.h>

#include <array>
#include <bit>
#include <cstdint>

#include "core/cpu/vector.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

// Exactly. (g++ 12 makes four operations of __builtin_convertvector, and warns of the intrinsic
// without a mask.)
inline Vector WidenHalves(HalfVector halves) {
  return std::bit_cast<Vector>(
      std::bit_cast<WordVector>(_mm512_maskz_cvtepu16_epi32(0xFFFF, std::bit_cast<__m256i>(halves)))
      << 16);
}

// Bits of bf16, rounded to the nearest, ties to even. The instruction takes denormal numbers for
// zero; the nine operations of BFloat16's own rounding do not.
inline HalfVector RoundHalves(Vector v) { return std::bit_cast<HalfVector>(_mm512_cvtneps_pbh(v)); }

// The same of two vectors: lane i holds that of even[i] below that of odd[i].
inline WordVector RoundPairs(Vector even, Vector odd) {
  // The instruction puts `even` first; the permutation brings each lane's two together.
  alignas(64) static constexpr std::array<uint16_t, 2 * kVectorLanes> kPairs = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto rounded = std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
  return std::bit_cast<WordVector>(
      _mm512_permutexvar_epi16(_mm512_load_si512(kPairs.data()), rounded));
}

// a b + c, rounded once. Where the compiler chooses which product of a sum to fuse, it may choose
// otherwise in another loop.
inline Vector MultiplyAdd(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }

// Of every lane; a where one is NaN. (g++ 12 makes a comparison and a choice of a > b ? b : a.)
inline Vector Min(Vector a, Vector b) { return _mm512_maskz_min_ps(0xFFFF, b, a); }
inline Vector Max(Vector a, Vector b) { return _mm512_maskz_max_ps(0xFFFF, b, a); }

// v 2^n, v in [1/2, 2) and n a whole number from -125 to 129. Of others below: anything.
inline Vector TimesPowerOfTwo(Vector v, Vector n) { return _mm512_maskz_scalef_ps(0xFFFF, v, n); }

// Past the caches; `to` is aligned to what is stored. Others see it after a FenceNonTemporal.
inline void StoreVectorNonTemporal(float* to, Vector v) { _mm512_stream_ps(to, v); }
inline void StoreHalvesNonTemporal(void* to, HalfVector v) {
  _mm256_stream_si256(static_cast<__m256i*>(to), std::bit_cast<__m256i>(v));
}
inline void FenceNonTemporal() { _mm_sfence(); }

}  // namespace twinstream::TWINSTREAM_CPU_ISA
