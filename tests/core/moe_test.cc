#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/testing/near.h"
#include "tests/testing/reference_moe.h"
#include "tests/testing/tested_ops.h"
#include "tests/testing/vectors.h"

namespace twinstream {
namespace {

using testing::kActivationTypes;
using testing::Lent;
using testing::RandomFloats;
using testing::View;

struct Sizes {
  int64_t N, E, k;
};

// What RouteTokens writes, over vectors.
class Routed {
 public:
  Routed(std::vector<float> logits, const Sizes& sizes)
      : sizes_(sizes),
        probabilities(std::move(logits)),
        lse(static_cast<size_t>(sizes.N), NAN),
        weights(static_cast<size_t>(sizes.N * sizes.k), NAN),
        experts(weights.size(), -1),
        rows(weights.size(), -1),
        choices(weights.size(), -1),
        counts(static_cast<size_t>(sizes.E), -1),
        statistics(2 * counts.size() + 1, NAN) {}

  RoutingTensors tensors() {
    const auto [N, E, k] = sizes_;
    return {.probabilities = View(probabilities, {N, E}),
            .lse = View(lse, {N}),
            .experts = View(experts, {N, k}),
            .weights = View(weights, {N, k}),
            .rows = View(rows, {N, k}),
            .choices = View(choices, {N * k}),
            .counts = View(counts, {E}),
            .statistics = View(statistics, {2 * E + 1})};
  }

 private:
  Sizes sizes_;

 public:
  std::vector<float> probabilities, lse, weights;
  std::vector<int32_t> experts, rows, choices, counts;
  std::vector<double> statistics;
};

const Sizes kSizes[] = {{1, 1, 1}, {5, 3, 3}, {37, 8, 2}, {300, 64, 8}, {64, 5, 1}, {1100, 6, 2}};

TEST(RouteTokens, MatchesTheReference) {
  for (const Sizes& sizes : kSizes) {
    const auto [N, E, k] = sizes;
    const std::vector<float> logits = RandomFloats(N * E, 1);
    const testing::ReferenceRouting expected =
        testing::RouteReference(testing::ToDouble(logits), E, k);
    Routed routed(logits, sizes);
    testing::TestedOps().RouteTokens(routed.tensors());
    EXPECT_LE(testing::RelativeError(routed.probabilities, expected.probabilities),
              testing::Float32Tolerance(E));
    EXPECT_LE(testing::RelativeError(routed.lse, expected.lse), testing::Float32Tolerance(E));
    for (int64_t i = 0; i < N * k; ++i) {
      const size_t at = static_cast<size_t>(i);
      const int64_t n = i / k,
                    e = expected.experts[static_cast<size_t>(n)][at % static_cast<size_t>(k)];
      EXPECT_EQ(routed.experts[at], e) << "token " << n;
      EXPECT_EQ(routed.weights[at], routed.probabilities[static_cast<size_t>(n * E + e)]);
    }
    std::vector<double> losses(2), loads(static_cast<size_t>(E), 1.0);
    testing::TestedOps().AddRouterLosses(View(losses, {2}), View(loads, {E}),
                                         View(routed.statistics, {2 * E + 1}), k);
    EXPECT_NEAR(losses[0] / expected.load_balance, 1, 1e-6);
    EXPECT_NEAR(losses[1] / expected.router_z, 1, 1e-6);
    for (size_t e = 0; e < loads.size(); ++e) {
      EXPECT_EQ(routed.counts[e], expected.loads[e]);
      EXPECT_EQ(loads[e], 1 + expected.loads[e]) << "added to what was there";
    }
  }
}

// No token is dropped: rows and choices are inverse permutations, by expert, then by token.
TEST(RouteTokens, EveryChoiceHasOneRowInTheOrderOfExpertsAndTokens) {
  for (const Sizes& sizes : kSizes) {
    const auto [N, E, k] = sizes;
    Routed routed(RandomFloats(N * E, 2), sizes);
    testing::TestedOps().RouteTokens(routed.tensors());
    for (size_t row = 0; row < routed.choices.size(); ++row) {
      const size_t choice = static_cast<size_t>(routed.choices[row]);
      EXPECT_EQ(routed.rows[choice], static_cast<int32_t>(row));
      if (row == 0) continue;
      const size_t before = static_cast<size_t>(routed.choices[row - 1]);
      EXPECT_LT(std::pair(routed.experts[before], before),
                std::pair(routed.experts[choice], choice));
    }
    EXPECT_EQ(std::accumulate(routed.counts.begin(), routed.counts.end(), 0), N * k);
  }
}

TEST(RouteTokens, OfEqualLogitsTheLowerExpertComesFirst) {
  std::vector<float> logits = {1, 3, 2, 3, 2, 0, 0, 0, 0, 0};
  Routed routed(logits, {2, 5, 3});
  testing::TestedOps().RouteTokens(routed.tensors());
  EXPECT_EQ(routed.experts, std::vector<int32_t>({1, 3, 2, 0, 1, 2}));
}

TEST(RouteTokens, LogitsThatAreNotNumbersStillChooseDifferentExperts) {
  std::vector<float> logits = {NAN, NAN, NAN, NAN, 1, NAN, 2, NAN, -INFINITY, 3, INFINITY, NAN};
  Routed routed(logits, {3, 4, 3});
  testing::TestedOps().RouteTokens(routed.tensors());
  for (size_t n = 0; n < 3; ++n) {
    std::vector<int32_t> chosen(&routed.experts[3 * n], &routed.experts[3 * n] + 3);
    std::sort(chosen.begin(), chosen.end());
    EXPECT_EQ(std::unique(chosen.begin(), chosen.end()), chosen.end());
    EXPECT_TRUE(chosen.front() >= 0 && chosen.back() < 4);
  }
}

TEST(RouteTokens, BitsDoNotDependOnTheThreads) {
  const Sizes sizes = {301, 64, 8};
  const std::vector<float> logits = RandomFloats(sizes.N * sizes.E, 3);
  std::vector<float> weighted = RandomFloats(sizes.N * sizes.k, 4);
  std::vector<float> probabilities, gradient;
  std::vector<double> statistics;
  for (int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    Routed routed(logits, sizes);
    testing::TestedOps().RouteTokens(routed.tensors());
    if (threads == 1) probabilities = routed.probabilities;
    if (threads == 1) statistics = routed.statistics;
    EXPECT_EQ(routed.probabilities, probabilities);
    EXPECT_EQ(routed.statistics, statistics);
    testing::TestedOps().RouterBackward(routed.tensors(), View(weighted, {sizes.N * sizes.k}),
                                        {1, 1});
    if (threads == 1) gradient = routed.probabilities;
    EXPECT_EQ(routed.probabilities, gradient);
  }
  omp_set_num_threads(1);
}

// Two ranks' tokens, whose statistics are summed, against the reference on all of them.
TEST(RouterBackward, MatchesDifferencesOfTheReferenceOverAllRanksTokens) {
  constexpr int64_t kFirst = 11, kSecond = 19, kAll = kFirst + kSecond;
  for (const auto& [E, k] : {std::pair<int64_t, int64_t>{6, 2}, {4, 4}, {9, 1}}) {
    const std::vector<float> logits = RandomFloats(kAll * E, 5);
    const std::vector<float> gradients = RandomFloats(kAll * E, 6);  // of each probability
    const testing::ReferenceCoefficients coefficients = {.load_balance = 30, .router_z = 20};
    const std::vector<double> expected = testing::RouterGradientReference(
        testing::ToDouble(logits), E, k, testing::ToDouble(gradients), coefficients);

    Routed parts[] = {Routed({logits.begin(), logits.begin() + kFirst * E}, {kFirst, E, k}),
                      Routed({logits.begin() + kFirst * E, logits.end()}, {kSecond, E, k})};
    for (Routed& part : parts) testing::TestedOps().RouteTokens(part.tensors());
    std::vector<double> sum = parts[0].statistics;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += parts[1].statistics[i];
    std::vector<float> gradient;
    for (Routed& part : parts) {
      part.statistics = sum;
      const int64_t first_token = &part == parts ? 0 : kFirst;
      std::vector<float> weighted(part.rows.size());
      for (size_t i = 0; i < part.rows.size(); ++i) {
        const int64_t token = first_token + static_cast<int64_t>(i) / k;
        weighted[static_cast<size_t>(part.rows[i])] =
            part.weights[i] * gradients[static_cast<size_t>(token * E + part.experts[i])];
      }
      testing::TestedOps().RouterBackward(part.tensors(),
                                          View(weighted, {static_cast<int64_t>(weighted.size())}),
                                          {.load_balance = 30, .router_z = 20});
      gradient.insert(gradient.end(), part.probabilities.begin(), part.probabilities.end());
    }
    EXPECT_LE(testing::RelativeError(gradient, expected), testing::Float32Tolerance(E));
  }
}

float Rounded(float value, DType dtype) {
  return dtype == DType::kBF16 ? float{RoundToBFloat16(value)} : value;
}

// The way there and back, with and without weights, against loops over the tokens' choices. C: of
// the rows; some are longer than the part that is summed at a time.
void ExpectRowsThereAndBack(DType dtype, int64_t C) {
  const auto [N, E, k] = Sizes{23, 5, 3};
  Routed routed(RandomFloats(N * E, 7), {N, E, k});
  testing::TestedOps().RouteTokens(routed.tensors());
  const RoutingTensors t = routed.tensors();
  std::vector<float> tokens = RandomFloats(N * C, 8, dtype),
                     out = RandomFloats(N * k * C, 9, dtype);
  const double rounding = dtype == DType::kBF16 ? testing::kBFloat16Epsilon : 0;
  for (bool weighted : {false, true}) {
    std::vector<float> rows(out.size(), NAN), sums(tokens.size(), NAN);
    const Tensor weights = weighted ? t.weights : Tensor();
    testing::TestedOps().GatherRows(Lent(rows, {N * k, C}, dtype), Lent(tokens, {N, C}, dtype),
                                    t.choices, weights);
    testing::TestedOps().CombineRows(Lent(sums, {N, C}, dtype), Lent(out, {N * k, C}, dtype),
                                     t.rows, weights);
    const size_t row_size = static_cast<size_t>(C);
    for (size_t n = 0; n < static_cast<size_t>(N); ++n) {
      for (size_t c = 0; c < row_size; ++c) {
        float sum = 0;
        double bound = 0;
        for (size_t j = 0; j < static_cast<size_t>(k); ++j) {
          const size_t choice = n * static_cast<size_t>(k) + j;
          const size_t row = static_cast<size_t>(routed.rows[choice]);
          const float weight = weighted ? routed.weights[choice] : 1.0F;
          ASSERT_EQ(rows[row * row_size + c], Rounded(weight * tokens[n * row_size + c], dtype));
          sum += weight * out[row * row_size + c];
          bound += std::abs(double{weight} * out[row * row_size + c]);
        }
        ASSERT_NEAR(sums[n * row_size + c], sum, 3e-7 * bound + rounding * std::abs(sum));
      }
    }
  }
}

TEST(MoeRows, GatherAndCombineFollowTheChoices) {
  for (DType dtype : kActivationTypes) {
    for (int64_t C : {1, 37, 512, 1100}) ExpectRowsThereAndBack(dtype, C);
  }
}

TEST(MoeRows, RowProductsMatchTheReference) {
  for (DType dtype : kActivationTypes) {
    for (int64_t C : {1, 37, 500, 512}) {
      std::vector<float> a = RandomFloats(9 * C, 10, dtype), b = RandomFloats(9 * C, 11, dtype),
                         out(9, NAN);
      std::vector<double> expected(9);
      for (size_t i = 0; i < a.size(); ++i) {
        expected[i / static_cast<size_t>(C)] += static_cast<double>(a[i]) * b[i];
      }
      testing::TestedOps().RowProducts(View(out, {9}), Lent(a, {9, C}, dtype),
                                       Lent(b, {9, C}, dtype));
      EXPECT_LE(testing::RelativeError(out, expected), testing::Float32Tolerance(C));
    }
  }
}

}  // namespace
}  // namespace twinstream
