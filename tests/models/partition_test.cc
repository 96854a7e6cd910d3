#include "models/partition.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <random>
#include <utility>

#include "gtest/gtest.h"

namespace twinstream {
namespace {

std::vector<int64_t> SizesOf(const std::vector<Range>& ranges) {
  std::vector<int64_t> sizes;
  for (const Range& range : ranges) sizes.push_back(range.size());
  return sizes;
}

// Dearest stage and layers per stage: better cuts compare less.
using Cut = std::pair<double, std::vector<int64_t>>;

// Of all cuts, the best: bit i of `mask` set means that a stage ends behind layer i.
Cut BruteForce(const std::vector<double>& costs, double first, double last, int stages) {
  const size_t layers = costs.size();
  Cut best{std::numeric_limits<double>::infinity(), {}};
  for (unsigned mask = 0; mask < 1u << (layers - 1); ++mask) {
    if (std::popcount(mask) != stages - 1) continue;
    Cut cut{0, {0}};
    double cost = first;
    for (size_t i = 0; i < layers; ++i) {
      cost += costs[i] + (i + 1 == layers ? last : 0);
      ++cut.second.back();
      cut.first = std::max(cut.first, cost);
      if ((mask >> i & 1) == 0) continue;
      cut.second.push_back(0);
      cost = 0;
    }
    best = std::min(best, cut);
  }
  return best;
}

TEST(Partition, IsTheBestOfAllCutsAndTheFirstOfEquals) {
  std::mt19937 random(1);
  const auto draw = [&](unsigned limit) { return static_cast<double>(random() % limit); };
  for (int layers = 1; layers <= 9; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      for (int trial = 0; trial < 20; ++trial) {
        std::vector<double> costs;
        for (int i = 0; i < layers; ++i) costs.push_back(draw(10));
        const double first = draw(20), last = draw(20);
        const std::vector<Range> ranges = PartitionLayers(costs, first, last, stages);
        EXPECT_EQ(SizesOf(ranges), BruteForce(costs, first, last, stages).second);
        int64_t end = 0;
        for (const Range& range : ranges) {
          EXPECT_EQ(range.begin, end);
          end = range.end;
        }
        EXPECT_EQ(end, layers);
      }
    }
  }
}

TEST(Partition, PutsFewerLayersFirstAmongEquallyGoodCuts) {
  EXPECT_EQ(SizesOf(PartitionLayers(std::vector<double>(5, 0.1), 0, 0, 2)),
            (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(SizesOf(PartitionLayers(std::vector<double>(8, 0.1), 0, 0, 4)),
            (std::vector<int64_t>{2, 2, 2, 2}));
  // Equally good for the dearest stage; the first of them in order of the sizes.
  EXPECT_EQ(SizesOf(PartitionLayers(std::vector<double>(6, 1), 0, 0, 4)),
            (std::vector<int64_t>{1, 1, 2, 2}));
}

TEST(Partition, GivesTheHeadsStageFewerLayers) {
  EXPECT_EQ(SizesOf(PartitionLayers(std::vector<double>(8, 1), 0, 2, 2)),
            (std::vector<int64_t>{5, 3}));
  EXPECT_EQ(SizesOf(PartitionLayers({1, 1}, 0, 100, 2)), (std::vector<int64_t>{1, 1}));
}

TEST(Partition, DiesOnMoreStagesThanLayers) {
  EXPECT_DEATH(PartitionLayers({1, 1}, 0, 0, 3), "2 layers do not fill 3 pipeline stages");
}

}  // namespace
}  // namespace twinstream
