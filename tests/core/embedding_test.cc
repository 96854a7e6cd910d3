#include <gtest/gtest.h>
#include <omp.h>

#include <random>
#include <string>
#include <vector>

#include "tests/testing/tested_ops.h"
#include "tests/testing/vectors.h"

namespace twinstream {
namespace {

constexpr int64_t kTokens = 300;
constexpr int64_t kTableRows = 11;
constexpr int64_t kBegin = 20;  // the table holds ids 20 .. 30

template <typename T>
Tensor TensorOf(std::vector<T>& values, const Shape& shape) {
  return Tensor(reinterpret_cast<std::byte*>(values.data()), DTypeOf<T>::kValue, shape);
}

// Ids below, in and above the table, many of them repeated.
std::vector<int32_t> Tokens() {
  std::mt19937 generator(4);
  std::uniform_int_distribution<int32_t> id(0, 40);
  std::vector<int32_t> tokens(kTokens);
  for (int32_t& token : tokens) token = id(generator);
  return tokens;
}

bool InTable(int32_t token) { return token >= kBegin && token < kBegin + kTableRows; }

class EmbeddingTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, EmbeddingTest, ::testing::ValuesIn(testing::kActivationTypes),
                         [](const auto& type) { return std::string(NameOf(type.param)); });

TEST_P(EmbeddingTest, TokensOfTheTableAreLookedUpAndOthersAreZero) {
  for (int64_t C : {1, 33, 64}) {
    std::vector<int32_t> tokens = Tokens();
    std::vector<float> table = testing::RandomFloats(kTableRows * C, 3, GetParam());
    std::vector<float> out(static_cast<size_t>(kTokens * C), -1.0F), expected;
    testing::TestedOps().EmbeddingForward(
        testing::Lent(out, {kTokens, C}, GetParam()), TensorOf(tokens, {kTokens}),
        testing::Lent(table, {kTableRows, C}, GetParam()), kBegin);
    for (int32_t token : tokens) {
      for (int64_t j = 0; j < C; ++j)
        expected.push_back(InTable(token) ? table[static_cast<size_t>((token - kBegin) * C + j)]
                                          : 0);
    }
    EXPECT_EQ(out, expected);
  }
}

// The table's gradient is float32, so the sums are the same whatever the type of dout.
TEST_P(EmbeddingTest, BackwardAddsInAscendingOrderOnAnyNumberOfThreads) {
  for (int64_t C : {1, 33, 130}) {
    std::vector<int32_t> tokens = Tokens();
    std::vector<float> dout = testing::RandomFloats(kTokens * C, 3, GetParam());
    std::vector<float> expected = testing::RandomFloats(kTableRows * C, 4);
    const std::vector<float> before = expected;
    for (size_t n = 0; n < kTokens; ++n) {
      for (int64_t j = 0; InTable(tokens[n]) && j < C; ++j)
        expected[static_cast<size_t>((tokens[n] - kBegin) * C + j)] +=
            dout[n * static_cast<size_t>(C) + static_cast<size_t>(j)];
    }
    for (int threads : {1, 2, 3}) {
      omp_set_num_threads(threads);
      std::vector<float> dtable = before;
      testing::TestedOps().EmbeddingBackward(TensorOf(dtable, {kTableRows, C}),
                                             TensorOf(tokens, {kTokens}),
                                             testing::Lent(dout, {kTokens, C}, GetParam()), kBegin);
      EXPECT_EQ(dtable, expected) << C << " columns, " << threads << " threads";
    }
    omp_set_num_threads(1);
  }
}

// A third of all tokens are one and the same, the others mostly occur once.
TEST_P(EmbeddingTest, BackwardAddsInAscendingOrderToManyRows) {
  constexpr int64_t kManyRows = 1500, kManyTokens = 700;
  for (int64_t C : {8, 11}) {
    std::vector<int32_t> tokens(kManyTokens);
    for (int32_t n = 0; n < kManyTokens; ++n) tokens[n] = n % 3 == 0 ? 1499 : n * 7919 % 1600;
    std::vector<float> dout = testing::RandomFloats(kManyTokens * C, 3, GetParam());
    std::vector<float> dtable = testing::RandomFloats(kManyRows * C, 4), expected = dtable;
    for (int64_t n = 0; n < kManyTokens; ++n) {
      const int64_t row = tokens[static_cast<size_t>(n)];
      for (int64_t j = 0; row < kManyRows && j < C; ++j)
        expected[static_cast<size_t>(row * C + j)] += dout[static_cast<size_t>(n * C + j)];
    }
    testing::TestedOps().EmbeddingBackward(
        TensorOf(dtable, {kManyRows, C}), TensorOf(tokens, {kManyTokens}),
        testing::Lent(dout, {kManyTokens, C}, GetParam()), /*begin=*/0);
    EXPECT_EQ(dtable, expected) << C << " columns";
  }
}

}  // namespace
}  // namespace twinstream
