#include "core/permutation.h"

#include <cmath>

#include "core/check.h"

namespace twinstream {
namespace {

constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio

// `bits` spread over [0, limit): the high word of a product, cheaper than a division. The bias is
// below limit / 2^64.
uint64_t Reduce(uint64_t bits, uint64_t limit) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * limit) >> 64);
}

}  // namespace

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014; constants of Stafford's variant 13).
uint64_t MixBits(uint64_t bits) {
  bits += kGoldenRatio;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

Permutation::Permutation(int64_t n, uint64_t key) : n_(n) {
  Check(n >= 1 && n < (int64_t{1} << 62), "no permutation of %d elements", n);
  const uint64_t size = static_cast<uint64_t>(n);
  rows_ = static_cast<uint64_t>(std::sqrt(static_cast<double>(size))) + 1;
  columns_ = (size + rows_ - 1) / rows_;
  for (int round = 0; round < kRounds; ++round) {
    round_keys_[round] = MixBits(key + static_cast<uint64_t>(round) * kGoldenRatio);
  }
}

// A Feistel network over Z_rows x Z_columns (Black and Rogaway 2002, "Ciphers with arbitrary finite
// domains"): each round adds a hash of one coordinate to the other, which can be undone, so the
// whole is a bijection of [0, rows * columns). Of those fewer than rows lie beyond n; the cycle is
// walked until it is back in [0, n), which keeps it a bijection and is hardly ever needed.
int64_t Permutation::operator()(int64_t i) const {
  Check(i >= 0 && i < n_, "element %d of a permutation of %d", i, n_);
  uint64_t value = static_cast<uint64_t>(i);
  do {
    uint64_t row = value / columns_, column = value % columns_;
    for (int round = 0; round < kRounds; round += 2) {
      row += Reduce(MixBits(round_keys_[round] ^ column), rows_);
      if (row >= rows_) row -= rows_;
      column += Reduce(MixBits(round_keys_[round + 1] ^ row), columns_);
      if (column >= columns_) column -= columns_;
    }
    value = row * columns_ + column;
  } while (value >= static_cast<uint64_t>(n_));
  return static_cast<int64_t>(value);
}

}  // namespace twinstream
