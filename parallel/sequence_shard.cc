#include "parallel/sequence_shard.h"

namespace twinstream {

int64_t SequenceShard::Position(int64_t index) const {
  if (ranks == 1) return index;
  const int64_t block = sequence / (int64_t{2} * ranks);
  return index < block ? rank * block + index : (2 * ranks - 2 - rank) * block + index;
}

SequenceShard::Place SequenceShard::PlaceOf(int64_t position) const {
  if (ranks == 1) return {0, position};
  const int64_t block = sequence / (int64_t{2} * ranks);
  const int number = static_cast<int>(position / block), last = 2 * ranks - 1;
  if (number < ranks) return {number, position % block};
  return {last - number, block + position % block};
}

}  // namespace twinstream
