#include "core/cpu/product_panels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "tests/testing/vectors.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

// Element (row, column) of a matrix that is stored so.
double At(const std::vector<float>& stored, const ProductOperand& matrix, int64_t row,
          int64_t column) {
  return stored[static_cast<size_t>(matrix.transposed ? column * matrix.stride + row
                                                      : row * matrix.stride + column)];
}

// f(stored values, matrix), [95, 95] in both forms.
template <class F>
void ForEachForm(DType dtype, F f) {
  constexpr int64_t kExtent = 95, kStride = 97;
  for (const bool transposed : {false, true}) {
    std::vector<float> stored = testing::RandomFloats(kExtent * kStride, 1, dtype);
    const testing::Lent lent(stored, {kExtent, kStride}, dtype);
    SCOPED_TRACE(::testing::Message() << NameOf(dtype) << transposed);
    f(stored, ProductOperand{Tensor(lent).data(), dtype, kStride, transposed});
  }
}

// Element `index` of a factor.
double ElementAt(float factor, int64_t /*index*/) { return factor; }
double ElementAt(BFloat16Pair factor, int64_t index) {
  return std::bit_cast<float>((index == 0 ? factor.bits << 16 : factor.bits) & 0xFFFF0000);
}

// A whole panel and a part of one.
template <class Factor>
void ExpectPanels(DType dtype, Range depth) {
  const Range columns = {5, 5 + kPanelColumns + 9};
  ForEachForm(dtype, [&](const std::vector<float>& stored, const ProductOperand& b) {
    const int64_t padded = PaddedToPanels(columns.size()),
                  factors = FactorsOf<Factor>(depth.size());
    std::vector<Factor> panels(static_cast<size_t>(factors * padded));
    std::fill(reinterpret_cast<uint32_t*>(panels.data()),
              reinterpret_cast<uint32_t*>(panels.data() + panels.size()), 0xFFFFFFFF);  // NaNs
    const RightOperand<Factor> right = PackRight(b, depth, columns, panels.data());
    for (int64_t k = 0; k < factors * kFactorDepth<Factor>; ++k) {
      for (int64_t j = 0; j < padded; ++j) {
        const Factor packed =
            right.data[j / kPanelColumns * right.panel_stride +
                       k / kFactorDepth<Factor> * right.row_stride + j % kPanelColumns];
        const bool missing = j >= columns.size() || k >= depth.size();
        EXPECT_EQ(ElementAt(packed, k % kFactorDepth<Factor>),
                  missing ? 0 : At(stored, b, depth.begin + k, columns.begin + j));
      }
    }
  });
}

// Transposed blocks of 8 factors, and a rest.
TEST(ProductPanels, PanelsHoldColumnsAndTheLastOneEndsWithZeros) {
  for (const DType dtype : testing::kActivationTypes) ExpectPanels<float>(dtype, {3, 24});
}

TEST(ProductPanels, PairsOfAnOddDepthEndWithAZero) {
  ExpectPanels<BFloat16Pair>(DType::kBF16, {3, 44});
  ExpectPanels<BFloat16Pair>(DType::kBF16, {3, 43});
}

}  // namespace
}  // namespace twinstream::TWINSTREAM_CPU_ISA
