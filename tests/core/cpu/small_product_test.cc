#include "core/cpu/small_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <type_traits>
#include <vector>

#include "core/bfloat16.h"
#include "tests/testing/near.h"
#include "tests/testing/vectors.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

using testing::Float32Tolerance;
using testing::RandomFloats;
using testing::RelativeError;

// Element (row, column) of a dense matrix of `columns` columns.
size_t At(int64_t row, int64_t column, int64_t columns) {
  return static_cast<size_t>(row * columns + column);
}

template <class Factor>
constexpr DType kElement = std::is_same_v<Factor, float> ? DType::kF32 : DType::kBF16;

// Of elements `step` apart.
template <class Factor>
Factor FactorAt(const float* first, int64_t step) {
  if constexpr (std::is_same_v<Factor, float>) {
    return *first;
  } else {
    return {RoundToBFloat16(first[0]).bits | uint32_t{RoundToBFloat16(first[step]).bits} << 16};
  }
}

// The left operand's factors [M, K] of elements [M, K * depth], and the right one's [K, N] of [K *
// depth, N].
template <class Factor>
std::vector<Factor> AlongRows(const std::vector<float>& elements) {
  std::vector<Factor> factors;
  for (size_t e = 0; e < elements.size(); e += kFactorDepth<Factor>) {
    factors.push_back(FactorAt<Factor>(&elements[e], 1));
  }
  return factors;
}

template <class Factor>
std::vector<Factor> AlongColumns(const std::vector<float>& elements, int64_t K, int64_t N) {
  std::vector<Factor> factors;
  for (int64_t k = 0; k < K; ++k) {
    for (int64_t j = 0; j < N; ++j) {
      factors.push_back(FactorAt<Factor>(&elements[At(k * kFactorDepth<Factor>, j, N)], N));
    }
  }
  return factors;
}

// Dense rows [K, N], one panel below the other.
template <class Factor>
std::vector<Factor> InPanels(const std::vector<Factor>& rows, int64_t K, int64_t N) {
  std::vector<Factor> panels;
  for (int64_t j = 0; j < N; j += kPanelColumns) {
    for (int64_t k = 0; k < K; ++k) {
      const auto begin = rows.begin() + static_cast<int64_t>(At(k, j, N));
      panels.insert(panels.end(), begin, begin + kPanelColumns);
    }
  }
  return panels;
}

template <class Factor>
std::vector<Factor> Transpose(const std::vector<Factor>& rows, int64_t M, int64_t K) {
  std::vector<Factor> columns(rows.size());
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t k = 0; k < K; ++k) columns[At(k, i, M)] = rows[At(i, k, K)];
  }
  return columns;
}

// Products of K factors, of every form of operands, against the double reference.
template <class Factor>
void TestProducts(int64_t M, int64_t N, int64_t K) {
  SCOPED_TRACE(::testing::Message() << M << " x " << K << " x " << N);
  const int64_t elements = K * kFactorDepth<Factor>;
  const std::vector<float> a_elements = RandomFloats(M * elements, 1, kElement<Factor>),
                           b_elements = RandomFloats(elements * N, 2, kElement<Factor>),
                           before = RandomFloats(M * N, 3);
  std::vector<double> product(static_cast<size_t>(M * N)), sum(product.size());
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t j = 0; j < N; ++j) {
      double& element = product[At(i, j, N)];
      for (int64_t k = 0; k < elements; ++k) {
        element += double{a_elements[At(i, k, elements)]} * b_elements[At(k, j, N)];
      }
      sum[At(i, j, N)] = element + before[At(i, j, N)];
    }
  }
  const auto a = AlongRows<Factor>(a_elements), columns = Transpose(a, M, K),
             panels = InPanels(AlongColumns<Factor>(b_elements, K, N), K, N);
  using Left = LeftOperand<Factor>;
  const auto right = RightOperand<Factor>::Panels(panels.data(), K);
  for (const Left& left : {Left::Rows(a.data(), K), Left::Transposed(columns.data(), M)}) {
    std::vector<float> written(product.size(), NAN), added = before;
    SmallProduct({M, N, K}, {.data = written.data(), .stride = N}, left, right);
    SmallProduct({M, N, K}, {.data = added.data(), .stride = N, .add = true}, left, right);
    EXPECT_LT(RelativeError(written, product), Float32Tolerance(elements));
    EXPECT_LT(RelativeError(added, sum), Float32Tolerance(elements + 1));
  }
}

template <class Factor>
class SmallProductTest : public ::testing::Test {};
using Factors = std::conditional_t<kMultipliesPairs, ::testing::Types<float, BFloat16Factor>,
                                   ::testing::Types<float>>;
TYPED_TEST_SUITE(SmallProductTest, Factors);

// Every remainder of rows, and depths around the part that is worked on at a time.
TYPED_TEST(SmallProductTest, EqualsTheDoubleReferenceForEveryFormOfOperands) {
  for (int64_t M = 1; M <= 4 * kTileRows; M += M <= kTileRows ? 1 : 3 * kTileRows - 1) {
    for (int64_t K : {int64_t{1}, kProductDepth - 1, kProductDepth, kProductDepth + 1,
                      2 * kProductDepth - 40}) {
      TestProducts<TypeParam>(M, kPanelColumns, K);
      TestProducts<TypeParam>(M, 3 * kPanelColumns, K);
    }
  }
}

}  // namespace
}  // namespace twinstream::TWINSTREAM_CPU_ISA
