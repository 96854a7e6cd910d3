#include <gtest/gtest.h>
#include <omp.h>

#include <random>
#include <vector>

#include "core/cpu/ops.h"

namespace twinstream {
namespace {

constexpr int64_t kTokens = 300;
constexpr int64_t kTableRows = 11;
constexpr int64_t kBegin = 20;  // the table holds ids 20 .. 30

template <typename T>
Tensor TensorOf(std::vector<T>& values, const Shape& shape) {
  return Tensor(reinterpret_cast<std::byte*>(values.data()), DTypeOf<T>::kValue, shape);
}

std::vector<float> Random(int64_t elements) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(elements));
  for (float& v : values) v = normal(generator);
  return values;
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

TEST(EmbeddingTest, TokensOfTheTableAreLookedUpAndOthersAreZero) {
  for (int64_t C : {1, 33, 64}) {
    std::vector<int32_t> tokens = Tokens();
    std::vector<float> table = Random(kTableRows * C);
    std::vector<float> out(static_cast<size_t>(kTokens * C), -1.0F), expected;
    CpuOps().EmbeddingForward(TensorOf(out, {kTokens, C}), TensorOf(tokens, {kTokens}),
                              TensorOf(table, {kTableRows, C}), kBegin);
    for (int32_t token : tokens) {
      for (int64_t j = 0; j < C; ++j)
        expected.push_back(InTable(token) ? table[static_cast<size_t>((token - kBegin) * C + j)]
                                          : 0);
    }
    EXPECT_EQ(out, expected);
  }
}

TEST(EmbeddingTest, BackwardAddsInAscendingOrderOnAnyNumberOfThreads) {
  for (int64_t C : {1, 33, 130}) {
    std::vector<int32_t> tokens = Tokens();
    std::vector<float> dout = Random(kTokens * C);
    std::vector<float> expected = Random(kTableRows * C);
    const std::vector<float> before = expected;
    for (size_t n = 0; n < kTokens; ++n) {
      for (int64_t j = 0; InTable(tokens[n]) && j < C; ++j)
        expected[static_cast<size_t>((tokens[n] - kBegin) * C + j)] +=
            dout[n * static_cast<size_t>(C) + static_cast<size_t>(j)];
    }
    for (int threads : {1, 2, 3}) {
      omp_set_num_threads(threads);
      std::vector<float> dtable = before;
      CpuOps().EmbeddingBackward(TensorOf(dtable, {kTableRows, C}), TensorOf(tokens, {kTokens}),
                                 TensorOf(dout, {kTokens, C}), kBegin);
      EXPECT_EQ(dtable, expected) << C << " columns, " << threads << " threads";
    }
    omp_set_num_threads(1);
  }
}

}  // namespace
}  // namespace twinstream
