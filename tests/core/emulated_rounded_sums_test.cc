#include <vector>

#include "core/cuda/rounded_sums.h"
#include "gtest/gtest.h"
#include "tests/testing/vectors.h"

namespace twinstream {
namespace {

// Nothing, less than a block, many blocks and some more; rows further apart than their elements.
TEST(RoundedSums, AreTakenInTheOrderOfTheRanksAndInFloat32) {
  constexpr int kRanks = 5;
  for (int64_t elements : {0, 1, 255, 3001}) {
    const int64_t stride = elements + 3;
    std::vector<BFloat16> addends(static_cast<size_t>(kRanks * stride));
    std::vector<float> expected(static_cast<size_t>(elements));
    for (int r = 0; r < kRanks; ++r) {
      std::vector<float> values;
      for (int64_t i = 0; i < elements; ++i) values.push_back(testing::FarApart(i * kRanks + r));
      RoundValues(addends.data() + r * stride, values.data(), elements, gpu::Stream());
      for (size_t i = 0; i < values.size(); ++i) {
        const BFloat16 rounded = RoundToBFloat16(values[i]);
        EXPECT_EQ(static_cast<float>(addends[static_cast<size_t>(r * stride) + i]),
                  static_cast<float>(rounded));
        expected[i] =
            r == 0 ? static_cast<float>(rounded) : expected[i] + static_cast<float>(rounded);
      }
    }
    std::vector<float> sums(expected.size(), -1);
    SumRoundedValues(sums.data(), addends.data(), kRanks, stride, elements, gpu::Stream());
    EXPECT_EQ(sums, expected);
  }
}

}  // namespace
}  // namespace twinstream
