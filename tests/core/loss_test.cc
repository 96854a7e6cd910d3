#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/near.h"
#include "tests/testing/tested_ops.h"
#include "tests/testing/vectors.h"

namespace twinstream::testing {
namespace {

using ::testing::Each;

constexpr int64_t kRows = 37, kVocabulary = 301;
constexpr float kZLoss = 0.1F, kScale = 0.25F;

struct Loss {
  std::vector<float> lse, dlogits;  // [N], [N, V]
  std::vector<double> sums;         // [2]
};

// Columns [begin, end) of every row.
std::vector<float> Columns(const std::vector<float>& rows, int64_t begin, int64_t end) {
  std::vector<float> part;
  for (int64_t n = 0; n < kRows; ++n)
    part.insert(part.end(), rows.begin() + n * kVocabulary + begin,
                rows.begin() + n * kVocabulary + end);
  return part;
}

// The three operations over a vocabulary cut at `ends`; the gradient is of `dtype`.
Loss Split(const std::vector<float>& logits, std::vector<int32_t> targets,
           const std::vector<int64_t>& ends, DType dtype = DType::kF32) {
  const Ops& ops = testing::TestedOps();
  const Tensor target_tensor = View(targets, {kRows});
  std::vector<float> gathered;
  int64_t begin = 0;
  for (int64_t end : ends) {
    std::vector<float> part = Columns(logits, begin, end), statistics(3 * kRows, NAN);
    ops.LogitStatistics(View(statistics, {kRows, 3}), View(part, {kRows, end - begin}),
                        target_tensor, begin);
    gathered.insert(gathered.end(), statistics.begin(), statistics.end());
    begin = end;
  }
  Loss loss{std::vector<float>(kRows, NAN), std::vector<float>(logits.size(), NAN), {10, 20}};
  ops.MergeLogitStatistics(View(loss.lse, {kRows}), View(loss.sums, {2}),
                           View(gathered, {static_cast<int64_t>(ends.size()), kRows, 3}),
                           target_tensor);
  begin = 0;
  for (int64_t end : ends) {
    std::vector<float> part = Columns(logits, begin, end);
    std::vector<float> gradient(part.size(), NAN);
    ops.LogitGradient(Lent(gradient, {kRows, end - begin}, dtype), View(part, {kRows, end - begin}),
                      target_tensor, View(loss.lse, {kRows}), begin, {kZLoss, kScale});
    for (int64_t n = 0; n < kRows; ++n)
      std::copy_n(gradient.begin() + n * (end - begin), end - begin,
                  loss.dlogits.begin() + n * kVocabulary + begin);
    begin = end;
  }
  return loss;
}

// scale * (cross-entropy + z_loss lse^2), summed over rows with a target, and its derivative.
struct Reference {
  std::vector<double> lse, dlogits, sums = {0, 0};
};

Reference InDouble(const std::vector<float>& logits, const std::vector<int32_t>& targets) {
  Reference reference;
  for (int64_t n = 0; n < kRows; ++n) {
    const float* row = &logits[static_cast<size_t>(n * kVocabulary)];
    double sum = 0;
    for (int64_t j = 0; j < kVocabulary; ++j) sum += std::exp(static_cast<double>(row[j]));
    const double lse = std::log(sum);
    const int32_t target = targets[static_cast<size_t>(n)];
    reference.lse.push_back(lse);
    if (target >= 0) {
      reference.sums[0] += lse - row[target];
      reference.sums[1] += lse * lse;
    }
    for (int64_t j = 0; j < kVocabulary; ++j) {
      const double softmax = std::exp(row[j] - lse);
      const double slope = softmax * (1 + 2 * kZLoss * lse) - (j == target ? 1 : 0);
      reference.dlogits.push_back(target < 0 ? 0 : kScale * slope);
    }
  }
  return reference;
}

class CpuLoss : public ::testing::Test {
 protected:
  CpuLoss() : logits(RandomFloats(kRows * kVocabulary, 1)) {
    for (float& logit : logits) logit = 5 * logit + 3;
    for (int64_t n = 0; n < kRows; ++n) {
      targets.push_back(n % 5 == 3 ? -1 : static_cast<int32_t>(n * 97 % kVocabulary));
    }
  }
  std::vector<float> logits;
  std::vector<int32_t> targets;
};

TEST_F(CpuLoss, EqualsTheDoubleReferenceHoweverTheVocabularyIsSplit) {
  const Reference expected = InDouble(logits, targets);
  const double tolerance = Float32Tolerance(kVocabulary);
  for (const std::vector<int64_t>& ends : {std::vector<int64_t>{kVocabulary},
                                           {150, kVocabulary},
                                           {100, 101, kVocabulary},
                                           {0, 200, kVocabulary},
                                           {kVocabulary, kVocabulary}}) {
    const Loss loss = Split(logits, targets, ends);
    EXPECT_LT(RelativeError(loss.lse, expected.lse), tolerance);
    EXPECT_LT(RelativeError(loss.dlogits, expected.dlogits), tolerance);
    EXPECT_NEAR(loss.sums[0] - 10, expected.sums[0], tolerance * expected.sums[0]);
    EXPECT_NEAR(loss.sums[1] - 20, expected.sums[1], tolerance * expected.sums[1]);
  }
}

TEST_F(CpuLoss, ABf16GradientIsTheFloat32OneRoundedOnce) {
  const Loss wide = Split(logits, targets, {200, kVocabulary});
  const Loss narrow = Split(logits, targets, {200, kVocabulary}, DType::kBF16);
  EXPECT_EQ(narrow.lse, wide.lse);
  EXPECT_EQ(narrow.sums, wide.sums);
  for (size_t i = 0; i < wide.dlogits.size(); ++i) {
    ASSERT_EQ(narrow.dlogits[i], static_cast<float>(RoundToBFloat16(wide.dlogits[i])));
  }
}

TEST_F(CpuLoss, AFloat32GradientMayReplaceTheLogits) {
  const Loss apart = Split(logits, targets, {kVocabulary});
  std::vector<float> in_place = logits, lse = apart.lse;
  const Tensor rows = View(in_place, {kRows, kVocabulary});
  testing::TestedOps().LogitGradient(rows, rows, View(targets, {kRows}), View(lse, {kRows}), 0,
                                     {kZLoss, kScale});
  EXPECT_EQ(in_place, apart.dlogits);
}

TEST_F(CpuLoss, RowsMayBeginAnywhere) {
  constexpr int64_t kColumns = 200;
  const Ops& ops = testing::TestedOps();
  const std::vector<float> part = Columns(logits, 0, kColumns);
  // With as many elements in front of the logits and of the gradient.
  const auto run = [&](int64_t of_logits, int64_t of_gradient) {
    const auto rows = [](std::vector<float>& values, int64_t begin) {
      return Tensor(reinterpret_cast<std::byte*>(values.data() + begin), DType::kF32,
                    {kRows, kColumns});
    };
    std::vector<float> moved(static_cast<size_t>(of_logits), NAN);
    moved.insert(moved.end(), part.begin(), part.end());
    std::vector<float> gradient(part.size() + static_cast<size_t>(of_gradient), NAN),
        results(3 * kRows), lse(kRows, 7.0F);
    ops.LogitStatistics(View(results, {kRows, 3}), rows(moved, of_logits), View(targets, {kRows}),
                        0);
    ops.LogitGradient(rows(gradient, of_gradient), rows(moved, of_logits), View(targets, {kRows}),
                      View(lse, {kRows}), 0, {kZLoss, kScale});
    results.insert(results.end(), gradient.begin() + of_gradient, gradient.end());
    return results;
  };
  const std::vector<double> expected = ToDouble(run(0, 0));
  EXPECT_LT(RelativeError(run(1, 0), expected), Float32Tolerance(kColumns));
  EXPECT_LT(RelativeError(run(0, 1), expected), Float32Tolerance(kColumns));
}

// A part without columns must not change a bit: ranks beyond the vocabulary's end hold none.
TEST_F(CpuLoss, AnEmptyPartChangesNothing) {
  const Loss whole = Split(logits, targets, {kVocabulary});
  const Loss padded = Split(logits, targets, {kVocabulary, kVocabulary});
  EXPECT_EQ(whole.lse, padded.lse);
  EXPECT_EQ(whole.sums, padded.sums);
  EXPECT_EQ(whole.dlogits, padded.dlogits);
}

TEST_F(CpuLoss, RowsWithoutATargetCountForNothing) {
  std::vector<int32_t> none(kRows, -1);
  const Loss loss = Split(logits, none, {150, kVocabulary});
  EXPECT_EQ(loss.sums, (std::vector<double>{10, 20}));
  EXPECT_THAT(loss.dlogits, Each(0.0F));
}

TEST_F(CpuLoss, HugeLogitsDoNotOverflow) {
  for (float& logit : logits) logit += 1e4F;
  const Loss loss = Split(logits, targets, {150, kVocabulary});
  EXPECT_TRUE(std::isfinite(loss.sums[0]));
  EXPECT_GT(*std::max_element(loss.lse.begin(), loss.lse.end()), 9e3F);
}

// A broken model must show in the loss, wherever in a row the NaN is.
TEST_F(CpuLoss, OneNanLogitMakesTheLossNan) {
  for (int64_t column = 0; column < kVocabulary; column += 11) {
    std::vector<float> broken = logits;
    broken[static_cast<size_t>(column)] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(Split(broken, targets, {150, kVocabulary}).sums[0])) << column;
  }
}

}  // namespace
}  // namespace twinstream::testing
