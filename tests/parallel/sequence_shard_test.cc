#include "parallel/sequence_shard.h"

#include <set>
#include <utility>

#include "gtest/gtest.h"

namespace twinstream {
namespace {

TEST(SequenceShard, EveryPositionIsOnOneRankInAscendingOrder) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int64_t block : {1, 2, 7}) {
      const int64_t sequence = 2 * block * ranks;
      std::set<int64_t> positions;
      for (int rank = 0; rank < ranks; ++rank) {
        const SequenceShard shard = {.sequence = sequence, .ranks = ranks, .rank = rank};
        ASSERT_EQ(shard.tokens(), 2 * block);
        for (int64_t i = 0; i < shard.tokens(); ++i) {
          const int64_t position = shard.Position(i);
          EXPECT_TRUE(positions.insert(position).second) << position << " is on two ranks";
          EXPECT_TRUE(i == 0 || shard.Position(i - 1) < position);
          EXPECT_EQ(shard.PlaceOf(position).rank, rank);
          EXPECT_EQ(shard.PlaceOf(position).index, i);
        }
      }
      EXPECT_EQ(static_cast<int64_t>(positions.size()), sequence);
      EXPECT_EQ(*positions.begin(), 0);
      EXPECT_EQ(*positions.rbegin(), sequence - 1);
    }
  }
}

TEST(SequenceShard, OneRankHoldsASequenceOfAnyLengthAsItIs) {
  for (int64_t sequence : {1, 2, 15}) {
    const SequenceShard shard = {.sequence = sequence};
    EXPECT_EQ(shard.tokens(), sequence);
    for (int64_t i = 0; i < sequence; ++i) {
      EXPECT_EQ(shard.Position(i), i);
      EXPECT_EQ(shard.PlaceOf(i).rank, 0);
      EXPECT_EQ(shard.PlaceOf(i).index, i);
    }
  }
}

// The keys that a rank's queries see, counted one by one.
TEST(SequenceShard, EveryRankSeesTheSameNumberOfTokens) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    const int64_t sequence = int64_t{10} * ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      const SequenceShard shard = {.sequence = sequence, .ranks = ranks, .rank = rank};
      int64_t seen = 0;
      for (int64_t i = 0; i < shard.tokens(); ++i) seen += shard.Position(i) + 1;
      EXPECT_EQ(seen, sequence * (sequence + 1) / 2 / ranks) << rank << " of " << ranks;
    }
  }
}

}  // namespace
}  // namespace twinstream
