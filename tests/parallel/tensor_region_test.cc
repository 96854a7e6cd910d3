#include "parallel/tensor_region.h"

#include <vector>

#include "gtest/gtest.h"
#include "parallel/process_grid.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/vectors.h"

namespace twinstream {
namespace {

constexpr int64_t kRows = 12, kColumns = 2;

// What rank `rank` holds at row n, column c: whole numbers, so that sums are exact.
float ValueOf(int rank, int64_t n, int64_t c) {
  return static_cast<float>(int64_t{100} * (rank + 1) + kColumns * n + c);
}
float SumOf(int ranks, int64_t n, int64_t c) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += ValueOf(r, n, c);
  return sum;
}

struct Mode {
  int ranks;
  bool shard_tokens;
};

class TensorRegionTest : public ::testing::TestWithParam<Mode> {
 protected:
  // body(region, values): `values` [kRows, kColumns] are the rank's own, `full` a view of them.
  static void Run(
      absl::FunctionRef<void(const TensorRegion&, std::vector<float>&, Tensor full)> body) {
    testing::RunRanks(GetParam().ranks, [&](Transport& transport) {
      ProcessGrid grid({.tensor = transport.size()}, transport);
      const TensorRegion region(grid.tensor(), GetParam().shard_tokens);
      std::vector<float> values;
      for (int64_t n = 0; n < kRows; ++n) {
        for (int64_t c = 0; c < kColumns; ++c) values.push_back(ValueOf(region.rank(), n, c));
      }
      body(region, values, testing::View(values, {kRows, kColumns}));
    });
  }
  static void ExpectRows(Range rows, const std::vector<float>& values,
                         absl::FunctionRef<float(int64_t n, int64_t c)> expected) {
    for (int64_t n = rows.begin; n < rows.end; ++n) {
      for (int64_t c = 0; c < kColumns; ++c) {
        ASSERT_EQ(values[static_cast<size_t>(n * kColumns + c)], expected(n, c)) << n << ", " << c;
      }
    }
  }
};

TEST_P(TensorRegionTest, OwnRowsAreAllOrOneShareEach) {
  Run([](const TensorRegion& region, std::vector<float>&, Tensor full) {
    const int64_t share = region.shards_tokens() ? kRows / region.size() : kRows;
    const Range rows = region.OwnRows(kRows);
    EXPECT_EQ(rows.size(), share);
    EXPECT_EQ(rows.begin, region.shards_tokens() ? share * region.rank() : 0);
    EXPECT_EQ(region.Own(full).data(), full.Rows(rows.begin, rows.end).data());
  });
}

TEST_P(TensorRegionTest, EnterAndLeaveBackwardGiveEveryRankTheRowsOfTheirOwners) {
  for (auto gather : {&TensorRegion::Enter, &TensorRegion::LeaveBackward}) {
    Run([&](const TensorRegion& region, std::vector<float>& values, Tensor full) {
      (region.*gather)(full);
      ExpectRows({0, kRows}, values, [&](int64_t n, int64_t c) {
        const int64_t owner = region.shards_tokens() ? n * region.size() / kRows : region.rank();
        return ValueOf(static_cast<int>(owner), n, c);
      });
    });
  }
}

TEST_P(TensorRegionTest, LeaveAndEnterBackwardLeaveTheSumInTheOwnRows) {
  for (auto sum : {&TensorRegion::Leave, &TensorRegion::EnterBackward}) {
    Run([&](const TensorRegion& region, std::vector<float>& values, Tensor full) {
      (region.*sum)(full);
      ExpectRows(region.OwnRows(kRows), values,
                 [&](int64_t n, int64_t c) { return SumOf(region.size(), n, c); });
    });
  }
}

TEST_P(TensorRegionTest, GatherTakesUnevenPiecesAndEmptyOnes) {
  Run([](const TensorRegion& region, std::vector<float>& values, Tensor full) {
    std::vector<int64_t> counts(static_cast<size_t>(region.size()), 0);
    counts.front() = 5;
    counts.back() += kRows * kColumns - 5;
    region.Gather(full.Reshape({kRows * kColumns}), counts);
    ExpectRows({0, kRows}, values, [&](int64_t n, int64_t c) {
      return ValueOf(n * kColumns + c < 5 ? 0 : region.size() - 1, n, c);
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, TensorRegionTest,
                         ::testing::Values(Mode{1, false}, Mode{1, true}, Mode{2, false},
                                           Mode{2, true}, Mode{3, false}, Mode{3, true},
                                           Mode{4, true}),
                         [](const auto& mode) {
                           return std::to_string(mode.param.ranks) +
                                  (mode.param.shard_tokens ? "Sharded" : "Replicated");
                         });

TEST(TensorRegion, AloneIsOneRankThatHoldsEverything) {
  const TensorRegion alone = TensorRegion::Alone();
  std::vector<float> values = {1, 2, 3, 4};
  const Tensor full = testing::View(values, {2, 2});
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.rank(), 0);
  alone.Enter(full);
  alone.Leave(full);
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace twinstream
