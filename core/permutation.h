// Permutation: a pseudo-random bijection of [0, n) that needs no table: O(1) memory and time, so a
// shuffle has no state to build, store or resume. Not cryptographic.
#pragma once

#include <array>
#include <cstdint>

namespace twinstream {

// A bijection of the 64-bit numbers that changes half of the output bits for any change of the
// input. Chained, it makes one key of several numbers: MixBits(MixBits(seed) ^ epoch).
uint64_t MixBits(uint64_t bits);

class Permutation {
 public:
  // 1 <= n < 2^62. Equal (n, key) give equal permutations on every machine.
  Permutation(int64_t n, uint64_t key);

  // 0 <= i < n.
  int64_t operator()(int64_t i) const;

 private:
  static constexpr int kRounds = 8;

  int64_t n_;
  uint64_t rows_, columns_;  // rows_ * columns_ >= n_, as square and as small as it gets
  std::array<uint64_t, kRounds> round_keys_;
};

}  // namespace twinstream
