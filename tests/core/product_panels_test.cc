#include "core/cpu/product_panels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/testing/vectors.h"

namespace twinstream {
namespace {

// Element (row, column) of a matrix that is stored so.
double At(const std::vector<float>& stored, const ProductOperand& matrix, int64_t row,
          int64_t column) {
  return stored[static_cast<size_t>(matrix.transposed ? column * matrix.stride + row
                                                      : row * matrix.stride + column)];
}

// f(stored values, matrix), [45, 45] in every form.
template <class F>
void ForEachForm(F f) {
  constexpr int64_t kExtent = 45, kStride = 47;
  for (const DType dtype : testing::kActivationTypes) {
    for (const bool transposed : {false, true}) {
      std::vector<float> stored = testing::RandomFloats(kExtent * kStride, 1, dtype);
      const testing::Lent lent(stored, {kExtent, kStride}, dtype);
      SCOPED_TRACE(::testing::Message() << NameOf(dtype) << transposed);
      f(stored, ProductOperand{Tensor(lent).data(), dtype, kStride, transposed});
    }
  }
}

constexpr Range kDepth = {3, 24};  // two transposed blocks of 8, and a rest

TEST(ProductPanels, PanelsHoldColumnsAndTheLastOneEndsWithZeros) {
  ForEachForm([](const std::vector<float>& stored, const ProductOperand& b) {
    constexpr Range kColumns = {5, 26};
    std::vector<float> panels(static_cast<size_t>(kDepth.size() * PaddedToPanels(21)), NAN);
    const RightOperand right = PackRight(b, kDepth, kColumns, panels.data());
    for (int64_t k = 0; k < kDepth.size(); ++k) {
      for (int64_t j = 0; j < PaddedToPanels(kColumns.size()); ++j) {
        const float packed = right.data[j / kPanelColumns * right.panel_stride +
                                        k * right.row_stride + j % kPanelColumns];
        const bool missing = j >= kColumns.size();
        EXPECT_EQ(packed, missing ? 0 : At(stored, b, kDepth.begin + k, kColumns.begin + j));
      }
    }
  });
}

TEST(ProductPanels, LeftOperandsHoldRowsWhateverTheirForm) {
  ForEachForm([](const std::vector<float>& stored, const ProductOperand& a) {
    constexpr Range kRows = {2, 21};  // three tiles and a part of one
    std::vector<float> packed(static_cast<size_t>(24 * kDepth.size()), NAN);
    const LeftOperand left = PackLeft(a, kRows, kDepth, packed.data());
    for (int64_t i = 0; i < kRows.size(); ++i) {
      for (int64_t k = 0; k < kDepth.size(); ++k) {
        EXPECT_EQ(*left.From(i, k).data, At(stored, a, kRows.begin + i, kDepth.begin + k));
      }
    }
  });
}

}  // namespace
}  // namespace twinstream
