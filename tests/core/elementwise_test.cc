#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "tests/testing/tested_ops.h"
#include "tests/testing/vectors.h"

namespace twinstream {
namespace {

constexpr int64_t kElements = 100003;  // several blocks and threads, and a remainder

template <typename T>
Tensor TensorOf(std::vector<T>& values) {
  return Tensor(reinterpret_cast<std::byte*>(values.data()), DTypeOf<T>::kValue,
                {static_cast<int64_t>(values.size())});
}

double SumOfSquares(std::vector<float>& values) {
  std::vector<double> sum = {-1};
  testing::TestedOps().SumsOfSquares(TensorOf(sum), {TensorOf(values)});
  return sum[0];
}

class ElementwiseTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { omp_set_num_threads(GetParam()); }
  void TearDown() override { omp_set_num_threads(1); }
};
INSTANTIATE_TEST_SUITE_P(Threads, ElementwiseTest, ::testing::Values(1, 3));

TEST_P(ElementwiseTest, AddAndScaleReachEveryElementOnce) {
  std::vector<float> a = testing::RandomFloats(kElements, 1),
                     b = testing::RandomFloats(kElements, 2), expected = a;
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = (expected[i] + b[i]) * 0.3F;
  testing::TestedOps().Add(TensorOf(a), TensorOf(b));
  testing::TestedOps().Scale(TensorOf(a), 0.3F);
  EXPECT_EQ(a, expected);
}

TEST_P(ElementwiseTest, AddOfBf16RoundsOnce) {
  std::vector<float> a = testing::RandomFloats(kElements, 1, DType::kBF16),
                     b = testing::RandomFloats(kElements, 2, DType::kBF16), expected;
  for (size_t i = 0; i < a.size(); ++i) expected.push_back(RoundToBFloat16(a[i] + b[i]));
  testing::TestedOps().Add(testing::Lent(a, {kElements}, DType::kBF16),
                           testing::Lent(b, {kElements}, DType::kBF16));
  EXPECT_EQ(a, expected);
}

TEST_P(ElementwiseTest, CastRoundsToTheNearestAndWidensExactly) {
  std::vector<float> values = testing::RandomFloats(kElements, 1), back(kElements, NAN);
  std::vector<BFloat16> narrow(kElements);
  testing::TestedOps().Cast(TensorOf(narrow), TensorOf(values));
  testing::TestedOps().Cast(TensorOf(back), TensorOf(narrow));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(narrow[i].bits, RoundToBFloat16(values[i]).bits);
    ASSERT_EQ(back[i], static_cast<float>(narrow[i]));
  }
}

// Parts of larger tensors begin anywhere.
TEST_P(ElementwiseTest, TensorsMayBeginAtAnyElement) {
  constexpr int64_t kCount = 1000;
  for (const int64_t begin : {1, 2, 4}) {
    std::vector<float> a = testing::RandomFloats(begin + kCount, 1),
                       b = testing::RandomFloats(kCount, 2), expected = a;
    std::vector<BFloat16> narrow(static_cast<size_t>(begin + kCount), BFloat16{3});
    const auto first = static_cast<size_t>(begin);
    for (size_t i = 0; i < kCount; ++i) expected[first + i] = (a[first + i] + b[i]) * 0.3F;
    const Tensor part = TensorOf(a).Rows(begin, begin + kCount);
    testing::TestedOps().Add(part, TensorOf(b));
    testing::TestedOps().Scale(part, 0.3F);
    testing::TestedOps().Cast(TensorOf(narrow).Rows(begin, begin + kCount), part);
    EXPECT_EQ(a, expected);
    EXPECT_EQ(narrow[first - 1].bits, 3);
    for (size_t i = first; i < a.size(); ++i)
      ASSERT_EQ(narrow[i].bits, RoundToBFloat16(expected[i]).bits);
  }
}

TEST_P(ElementwiseTest, ZeroClearsEveryDtypeAndNothingElse) {
  std::vector<double> wide(kElements, 3);
  std::vector<int32_t> integers(7, 3);
  std::vector<BFloat16> narrow(5, BFloat16{3});
  testing::TestedOps().Zero(TensorOf(wide).Rows(1, kElements - 1));
  testing::TestedOps().Zero(TensorOf(integers));
  testing::TestedOps().Zero(TensorOf(narrow).Rows(0, 4));
  EXPECT_EQ(wide.front(), 3);
  EXPECT_EQ(wide.back(), 3);
  EXPECT_EQ(std::vector<double>(wide.begin() + 1, wide.end() - 1),
            std::vector<double>(kElements - 2));
  EXPECT_EQ(integers, std::vector<int32_t>(7));
  EXPECT_EQ(narrow[3].bits, 0);
  EXPECT_EQ(narrow[4].bits, 3);
}

TEST_P(ElementwiseTest, NoElementsAreNoWork) {
  std::vector<float> none;
  testing::TestedOps().Zero(TensorOf(none));
  testing::TestedOps().Add(TensorOf(none), TensorOf(none));
  EXPECT_EQ(SumOfSquares(none), 0);
}

TEST_P(ElementwiseTest, SumOfSquaresIsExactToDouble) {
  std::vector<float> values = testing::RandomFloats(kElements, 1);
  values[5] = 1e18F;  // the square does not fit in a float's range of 24 bits beside the others
  values[70000] = 1e25F;
  long double expected = 0;
  for (float v : values) expected += static_cast<long double>(v) * v;
  EXPECT_NEAR(SumOfSquares(values) / static_cast<double>(expected), 1, 1e-13);
  values[99999] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(SumOfSquares(values), std::numeric_limits<double>::infinity());
}

TEST(SumOfSquaresTest, NoBitDependsOnThreadsOrPlace) {
  std::vector<float> values = testing::RandomFloats(kElements, 1);
  omp_set_num_threads(1);
  const double one = SumOfSquares(values);
  for (int threads : {2, 3, 7}) {
    omp_set_num_threads(threads);
    EXPECT_EQ(SumOfSquares(values), one) << threads << " threads";
  }
  omp_set_num_threads(1);
  std::vector<float> shifted(values.size() + 3);
  std::copy(values.begin(), values.end(), shifted.begin() + 3);
  std::vector<double> sum(1);
  testing::TestedOps().SumsOfSquares(TensorOf(sum), {TensorOf(shifted).Rows(3, kElements + 3)});
  EXPECT_EQ(sum[0], one);
}

// More than one grid of a card takes: empty ones, one and several blocks, parts of packs, and one
// of more elements than its blocks take at a time.
TEST(SumsOfSquaresTest, ManyTensorsTogetherHaveTheSumsOfEachAlone) {
  constexpr size_t kTensors = 300, kLargest = 7;
  std::vector<std::vector<float>> values;
  std::vector<Tensor> tensors;
  for (uint32_t i = 0; i < kTensors; ++i) {
    constexpr int64_t kSizes[] = {5, 4096, 0, 1, 9001, 4, 1023, 0, 3, 4097};
    values.push_back(testing::RandomFloats(
        i == kLargest ? (1 << 22) + 4101 : kSizes[i % std::size(kSizes)], i + 1));
  }
  for (std::vector<float>& tensor : values) tensors.push_back(TensorOf(tensor));
  std::vector<double> sums(kTensors + 1, -1);
  testing::TestedOps().SumsOfSquares(TensorOf(sums).Rows(0, kTensors), tensors);
  for (size_t i = 0; i < kTensors; ++i) {
    EXPECT_EQ(sums[i], SumOfSquares(values[i])) << i;
    long double expected = 0;
    for (float v : values[i]) expected += static_cast<long double>(v) * v;
    EXPECT_NEAR(sums[i], static_cast<double>(expected), 1e-13 * static_cast<double>(expected)) << i;
  }
  EXPECT_EQ(sums[kTensors], -1);
  testing::TestedOps().SumsOfSquares(TensorOf(sums).Rows(0, 0), {});
}

}  // namespace
}  // namespace twinstream
