// Elementary functions written so that the compiler vectorises loops over them: no branches, no
// calls, no tables. g++ needs -fno-trapping-math for that (CMakeLists.txt sets it for core/cpu).
#pragma once

#include <bit>
#include <cstdint>

namespace twinstream {

// e^x within 2 ulp. Results below 2^-125.5 are zero, above the largest float infinite; NaN stays
// NaN.
//   e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln 2 / 2, e^r by the minimax polynomial of Cephes.
inline float Exp(float x) {
  constexpr float kLowest = -87.3F;         // n = -126: the scale below is zero
  constexpr float kHighest = 89;            // past ln of the largest float: overflows below
  constexpr float kLog2E = 1.44269504F;     // 1 / ln 2
  constexpr float kLn2High = 0.693359375F;  // ln 2 in two parts: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRoundToInteger = 12582912;  // 1.5 * 2^23: no bits are left for a fraction
  x = x > kHighest ? kHighest : x;
  x = x < kLowest ? kLowest : x;
  const float shifted = x * kLog2E + kRoundToInteger;  // its low bits hold n
  const float n = shifted - kRoundToInteger;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1;
  // 2^(n-1), then twice that: 2^128 itself is no float.
  const uint32_t half_scale = (std::bit_cast<uint32_t>(shifted) << 23) + (126U << 23);
  return p * std::bit_cast<float>(half_scale) * 2;
}

}  // namespace twinstream
