// What products are made for, on AVX-512 with bf16. The include path chooses between this and its
// twin in avx2.
#pragma once

#include <cstdint>

namespace twinstream::TWINSTREAM_CPU_ISA {

constexpr int64_t kVectorLanes = 16;  // floats in a vector

// A tile of the result is held in 24 of 32 registers, while rows of b come in two and elements of a
// in one. Two multiplications and additions a cycle then need 1.2 loads.
constexpr int64_t kTileRows = 12;

// Of K at a time: as much of a panel and a tile take 44 KB of a first-level cache.
constexpr int64_t kProductDepth = 256;

// Whether there is a SmallProduct of BFloat16Pair.
constexpr bool kMultipliesPairs = true;

}  // namespace twinstream::TWINSTREAM_CPU_ISA
