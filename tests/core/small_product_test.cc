#include "core/cpu/small_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/testing/near.h"
#include "tests/testing/vectors.h"

namespace twinstream {
namespace {

using testing::Float32Tolerance;
using testing::RandomFloats;
using testing::RelativeError;

// Element (row, column) of a dense matrix of `columns` columns.
size_t At(int64_t row, int64_t column, int64_t columns) {
  return static_cast<size_t>(row * columns + column);
}

// Dense rows [K, N], one panel below the other.
std::vector<float> InPanels(const std::vector<float>& rows, int64_t K, int64_t N) {
  std::vector<float> panels;
  for (int64_t j = 0; j < N; j += kPanelColumns) {
    for (int64_t k = 0; k < K; ++k) {
      const auto begin = rows.begin() + static_cast<int64_t>(At(k, j, N));
      panels.insert(panels.end(), begin, begin + kPanelColumns);
    }
  }
  return panels;
}

// Rows [M, K], one tile's columns after those of the one before; the last tile is not full.
std::vector<float> InTiles(const std::vector<float>& rows, int64_t M, int64_t K) {
  std::vector<float> tiles(At((M + kTileRows - 1) / kTileRows * kTileRows, 0, K), NAN);
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t k = 0; k < K; ++k) {
      tiles[At(i / kTileRows * K + k, i % kTileRows, kTileRows)] = rows[At(i, k, K)];
    }
  }
  return tiles;
}

std::vector<float> Transpose(const std::vector<float>& rows, int64_t M, int64_t K) {
  std::vector<float> columns(rows.size());
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t k = 0; k < K; ++k) columns[At(k, i, M)] = rows[At(i, k, K)];
  }
  return columns;
}

// Every remainder of rows, and depths around the part that is worked on at a time.
TEST(SmallProduct, EqualsTheDoubleReferenceForEveryFormOfOperands) {
  for (int64_t M : {1, 2, 3, 4, 5, 6, 7, 48}) {
    for (int64_t K : {int64_t{1}, kProductDepth - 1, kProductDepth, kProductDepth + 1,
                      2 * kProductDepth - 40}) {
      for (int64_t N : {16, 48}) {
        SCOPED_TRACE(::testing::Message() << M << " x " << K << " x " << N);
        const std::vector<float> a = RandomFloats(M * K, 1), b = RandomFloats(K * N, 2),
                                 before = RandomFloats(M * N, 3);
        std::vector<double> product(static_cast<size_t>(M * N)), sum(product.size());
        for (int64_t i = 0; i < M; ++i) {
          for (int64_t j = 0; j < N; ++j) {
            double& element = product[At(i, j, N)];
            for (int64_t k = 0; k < K; ++k) element += double{a[At(i, k, K)]} * b[At(k, j, N)];
            sum[At(i, j, N)] = element + before[At(i, j, N)];
          }
        }
        const std::vector<float> columns = Transpose(a, M, K), panels = InPanels(b, K, N),
                                 tiles = InTiles(a, M, K);
        for (const LeftOperand& left :
             {LeftOperand::Rows(a.data(), K), LeftOperand::Transposed(columns.data(), M),
              LeftOperand::Tiles(tiles.data(), K)}) {
          for (const RightOperand& right :
               {RightOperand::Rows(b.data(), N), RightOperand::Panels(panels.data(), K)}) {
            std::vector<float> written(product.size(), NAN), added = before;
            SmallProduct({M, N, K}, {.data = written.data(), .stride = N}, left, right);
            SmallProduct({M, N, K}, {.data = added.data(), .stride = N, .add = true}, left, right);
            EXPECT_LT(RelativeError(written, product), Float32Tolerance(K));
            EXPECT_LT(RelativeError(added, sum), Float32Tolerance(K + 1));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace twinstream
