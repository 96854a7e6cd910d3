#include "core/permutation.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace twinstream {
namespace {

std::vector<int64_t> Values(int64_t n, uint64_t key) {
  const Permutation permutation(n, key);
  std::vector<int64_t> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(permutation(i));
  return values;
}

void ExpectEveryValueOnce(int64_t n, uint64_t key) {
  std::vector<bool> seen(n);
  for (const int64_t value : Values(n, key)) {
    ASSERT_GE(value, 0);
    ASSERT_LT(value, n);
    ASSERT_FALSE(seen[value]) << value << " twice, n " << n;
    seen[value] = true;
  }
}

TEST(PermutationTest, EveryValueAppearsOnceForEveryN) {
  for (int64_t n = 1; n <= 300; ++n) ExpectEveryValueOnce(n, 7 * n);
  for (const int64_t n : {1023, 1024, 1025, 65521, 65536, 99999}) ExpectEveryValueOnce(n, 1);
}

TEST(PermutationTest, StaysInRangeAndIsInjectiveBeyondFortyBits) {
  for (const int64_t n : {(int64_t{1} << 40) + 1, (int64_t{1} << 61) + 12345}) {
    const Permutation permutation(n, 3);
    std::set<int64_t> values;
    for (int64_t i = 0; i < 1000; ++i) values.insert(permutation(i));
    for (int64_t i = n - 1000; i < n; ++i) values.insert(permutation(i));
    EXPECT_EQ(values.size(), 2000u);
    EXPECT_GE(*values.begin(), 0);
    EXPECT_LT(*values.rbegin(), n);
    EXPECT_GT(*values.rbegin(), n / 100 * 98);  // 2000 draws leave the top 2% out with 1e-18
  }
}

TEST(PermutationTest, KeysGiveUnrelatedPermutations) {
  const int64_t n = 1000;
  for (const uint64_t key : {0u, 1u, 2u, 3u}) {
    const std::vector<int64_t> a = Values(n, key), b = Values(n, key + 1);
    int64_t equal = 0;
    for (int64_t i = 0; i < n; ++i) equal += a[i] == b[i];
    EXPECT_LT(equal, 12);  // Poisson with mean 1
    EXPECT_EQ(a, Values(n, key));
  }
}

// Over many keys, element i lands on every value equally often, also where the halves are tiny and
// a Feistel network is weakest.
TEST(PermutationTest, EveryPlaceIsEquallyLikely) {
  const int64_t keys = 20000;
  for (const int64_t n : {2, 3, 5, 10, 17, 64}) {
    for (const int64_t i : {int64_t{0}, n / 2, n - 1}) {
      std::vector<int64_t> counts(n);
      for (int64_t key = 0; key < keys; ++key) ++counts[Permutation(n, key)(i)];
      const double expected = static_cast<double>(keys) / static_cast<double>(n);
      double chi_square = 0;
      for (const int64_t count : counts) {
        chi_square += std::pow(static_cast<double>(count) - expected, 2) / expected;
      }
      const double freedom = static_cast<double>(n - 1);
      EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom) + 5) << "n " << n << ", i " << i;
    }
  }
}

// Neighbours land far from each other: the distance of two random places is n / 3 on average.
TEST(PermutationTest, NeighboursAreIndependent) {
  const int64_t n = 100003;
  const std::vector<int64_t> values = Values(n, 11);
  double distance = 0;
  for (int64_t i = 1; i < n; ++i) {
    distance += std::abs(static_cast<double>(values[i] - values[i - 1]));
  }
  EXPECT_NEAR(distance / static_cast<double>(n) / static_cast<double>(n), 1.0 / 3, 0.005);
}

// Of this thread's processor time, which other processes hardly disturb.
double BestSeconds(int64_t n) {
  const Permutation permutation(n, 5);
  const auto now = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  double best = 1e9;
  for (int repeat = 0; repeat < 15; ++repeat) {
    const double begin = now();
    int64_t sum = 0;
    for (int64_t i = 0; i < 10000; ++i) sum += permutation(i % n) >> 20;
    EXPECT_GE(sum, 0);
    best = std::min(best, now() - begin);
  }
  return best;
}

TEST(PermutationTest, CostDoesNotGrowWithN) {
  const double small = BestSeconds(1000);
  for (const int64_t n : {(int64_t{1} << 20) + 1, (int64_t{1} << 40) + 1, int64_t{1} << 61}) {
    EXPECT_LT(BestSeconds(n), 10 * small) << n;
  }
}

}  // namespace
}  // namespace twinstream
