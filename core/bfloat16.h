// BFloat16: the upper half of a float32. A format of memory: it is read as a float32, and sums are
// float32's. Conversions have no branches and no calls, so that loops over them
// become vector instructions; constexpr, so that a CUDA compiler takes them for kernels too.
#pragma once

#include <bit>
#include <cstdint>

namespace twinstream {

struct BFloat16 {
  uint16_t bits;

  // Exact.
  // NOLINTNEXTLINE(google-explicit-constructor): kernels read the same for both
  constexpr operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }

  // To the nearest value, ties to even: within 2^-8 of `value`, relatively. Beyond the largest
  // finite value infinite; NaN stays NaN.
  constexpr BFloat16& operator=(float value) {
    const uint32_t wide = std::bit_cast<uint32_t>(value);
    const uint32_t to_nearest = 0x7FFF + ((wide >> 16) & 1);
    const uint32_t quiet = ~wide & 0x400000;  // rounding up could carry a NaN into infinity
    bits = static_cast<uint16_t>((wide + (value != value ? quiet : to_nearest)) >> 16);
    return *this;
  }
};

constexpr BFloat16 RoundToBFloat16(float value) {
  BFloat16 rounded = {};
  rounded = value;
  return rounded;
}

}  // namespace twinstream
