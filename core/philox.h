// Philox 4x32-10: random bits as a pure function of a counter and a key, so that any element can be
// drawn by any rank, thread or device in any order. No state.
// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <cstdint>

namespace twinstream {

struct PhiloxBlock {
  uint32_t words[4];
};

struct PhiloxKey {
  uint32_t words[2];
};

constexpr PhiloxBlock PhiloxRound(const PhiloxBlock& in, const PhiloxKey& key) {
  const uint64_t product0 = uint64_t{0xD2511F53} * in.words[0];
  const uint64_t product1 = uint64_t{0xCD9E8D57} * in.words[2];
  return {{static_cast<uint32_t>(product1 >> 32) ^ in.words[1] ^ key.words[0],
           static_cast<uint32_t>(product1),
           static_cast<uint32_t>(product0 >> 32) ^ in.words[3] ^ key.words[1],
           static_cast<uint32_t>(product0)}};
}

// 128 random bits; different counters of one key never give the same block.
constexpr PhiloxBlock Philox(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    counter = PhiloxRound(counter, key);
    key.words[0] += 0x9E3779B9;  // the golden ratio
    key.words[1] += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

}  // namespace twinstream
