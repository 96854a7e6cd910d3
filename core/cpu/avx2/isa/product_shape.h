// What products are made for, on AVX2. The include path chooses between this and its twin in
// avx512.
#pragma once

#include <cstdint>

namespace twinstream::TWINSTREAM_CPU_ISA {

constexpr int64_t kVectorLanes = 8;  // floats in a vector

// A tile of the result is held in 12 of 16 registers, while rows of b come in two and elements of a
// in one. Two multiplications and additions a cycle then need 1.3 loads.
constexpr int64_t kTileRows = 6;

// Of K at a time: as much of a panel and a tile take 28 KB of a first-level cache.
constexpr int64_t kProductDepth = 320;

// Whether there is a SmallProduct of BFloat16Pair.
constexpr bool kMultipliesPairs = false;

}  // namespace twinstream::TWINSTREAM_CPU_ISA
