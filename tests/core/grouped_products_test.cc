// Grouped products on every device: against the double oracle, a product for each group.
#include "core/grouped_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tests/testing/near.h"
#include "tests/testing/product_checks.h"
#include "tests/testing/tested_ops.h"
#include "tests/testing/vectors.h"

namespace twinstream::testing {
namespace {

constexpr DType kNarrow = DType::kBF16, kWide = DType::kF32;

// The rows of every group, and the extents of its product that are not them: of a matrix.
struct GroupedSize {
  std::vector<int64_t> rows_of_group;
  int64_t inputs, outputs;

  int64_t groups() const { return static_cast<int64_t>(rows_of_group.size()); }
  int64_t rows() const {
    return std::accumulate(rows_of_group.begin(), rows_of_group.end(), int64_t{0});
  }
};

std::vector<MatmulOptions> AllGroupedOptions() {
  std::vector<MatmulOptions> all;
  for (const MatmulOptions& options : AllMatmulOptions()) {
    if (!options.varying && !(options.transpose_a && options.transpose_b)) all.push_back(options);
  }
  return all;
}

std::vector<float> Part(const std::vector<float>& values, int64_t begin, int64_t count) {
  return {values.begin() + begin, values.begin() + begin + count};
}

// The operands of a call, with kBehind rows behind those of the groups: NaN, so that a result tells
// who has read them.
class GroupedCall {
 public:
  GroupedCall(const GroupedSize& size, const MatmulOptions& options, const ProductTypes& types)
      : size_(size),
        options_(options),
        types_(types),
        a_columns_(options.transpose_a ? size.outputs : size.inputs),
        out_columns_(options.transpose_a ? size.inputs : size.outputs),
        matrix_{size.outputs, size.inputs} {
    if (!options.transpose_a && !options.transpose_b) matrix_ = {size.inputs, size.outputs};
    const int64_t matrices = size.groups() * size.inputs * size.outputs;
    const int64_t all_rows = size.rows() + kBehind;
    a_ = WithNanBehind(RandomFloats(all_rows * a_columns_, 1, types.a), a_columns_);
    if (options.transpose_a) {
      b_ = WithNanBehind(RandomFloats(all_rows * out_columns_, 2, types.b), out_columns_);
      out_ = RandomFloats(matrices, 3, types.out);
    } else {
      b_ = RandomFloats(matrices, 2, types.b);
      out_ = RandomFloats(all_rows * out_columns_, 3, types.out);
    }
  }

  std::vector<double> Expected() const {
    std::vector<double> expected;
    int64_t begin = 0, matrix_begin = 0;
    const int64_t matrix = size_.inputs * size_.outputs;
    for (int64_t rows : size_.rows_of_group) {
      const ProductSize product = options_.transpose_a
                                      ? ProductSize{size_.outputs, size_.inputs, rows}
                                      : ProductSize{rows, size_.outputs, size_.inputs};
      const auto rows_of = [&](const std::vector<float>& values, int64_t columns) {
        return Part(values, begin * columns, rows * columns);
      };
      const auto matrix_of = [&](const std::vector<float>& values) {
        return Part(values, matrix_begin, matrix);
      };
      const std::vector<double> result = ReferenceProduct(
          options_.transpose_a ? matrix_of(out_) : rows_of(out_, out_columns_),
          rows_of(a_, a_columns_), options_.transpose_a ? rows_of(b_, out_columns_) : matrix_of(b_),
          product, options_);
      expected.insert(expected.end(), result.begin(), result.end());
      begin += rows;
      matrix_begin += matrix;
    }
    // What lies behind stays.
    expected.insert(expected.end(), out_.begin() + static_cast<int64_t>(expected.size()),
                    out_.end());
    return expected;
  }

  std::vector<float> Run(const Ops& ops) {
    std::vector<float> out = out_;
    const int64_t all_rows = size_.rows() + kBehind;
    const Shape of_matrices = {size_.groups() * matrix_[0], matrix_[1]};
    const Shape of_outputs = {all_rows, out_columns_};
    ops.GroupedMatmul(Lent(out, options_.transpose_a ? of_matrices : of_outputs, types_.out),
                      Lent(a_, {all_rows, a_columns_}, types_.a),
                      Lent(b_, options_.transpose_a ? of_outputs : of_matrices, types_.b),
                      size_.rows_of_group, options_);
    return out;
  }

  double Error(const Ops& ops) { return RelativeError(Run(ops), Expected()); }

  double Tolerated() const {
    const int64_t most = *std::max_element(size_.rows_of_group.begin(), size_.rows_of_group.end());
    return Tolerance(types_.out, options_.transpose_a ? most : size_.inputs);
  }

 private:
  static constexpr int64_t kBehind = 3;

  static std::vector<float> WithNanBehind(std::vector<float> values, int64_t columns) {
    std::fill(values.end() - kBehind * columns, values.end(), NAN);
    return values;
  }

  GroupedSize size_;
  MatmulOptions options_;
  ProductTypes types_;
  int64_t a_columns_, out_columns_;
  Shape matrix_;  // of one group
  std::vector<float> a_, b_, out_;
};

void ExpectGroupedProducts(const GroupedSize& size, const ProductTypes& types) {
  for (const MatmulOptions& options : AllGroupedOptions()) {
    GroupedCall call(size, options, types);
    EXPECT_LE(call.Error(TestedOps()), call.Tolerated())
        << size.groups() << " groups, " << size.inputs << " " << size.outputs << " "
        << options.transpose_a << options.transpose_b << options.accumulate << " "
        << NameOf(types.out) << " = " << NameOf(types.a) << " " << NameOf(types.b);
  }
}

constexpr ProductTypes kAllTypes[] = {{kWide, kWide, kWide},
                                      {kNarrow, kNarrow, kNarrow},
                                      {kWide, kNarrow, kNarrow},
                                      {kNarrow, kWide, kNarrow}};

// Groups without rows first, last and in between, of one row, and of several tiles of 128.
TEST(GroupedProductsTest, EveryFormAndOddSizesMatchTheReference) {
  for (const ProductTypes& types : kAllTypes) {
    ExpectGroupedProducts({{0, 5, 0, 1, 17, 0}, 7, 9}, types);
    ExpectGroupedProducts({{1}, 1, 1}, types);
    ExpectGroupedProducts({{3, 70, 0}, 8, 24}, types);
    ExpectGroupedProducts({{130, 0, 1, 77}, 136, 264}, types);
    ExpectGroupedProducts({{330, 2, 129}, 328, 40}, types);  // of more terms than wait in line
  }
}

TEST(GroupedProductsTest, NoRowsAtAllAreZeroOrUnchanged) {
  for (const ProductTypes& types : kAllTypes) ExpectGroupedProducts({{0, 0}, 16, 8}, types);
}

// A launch takes 64.
TEST(GroupedProductsTest, ManyGroupsMatchTheReference) {
  GroupedSize size = {{}, 16, 24};
  for (int64_t group = 0; group < 100; ++group) size.rows_of_group.push_back(group % 4);
  ExpectGroupedProducts(size, {kWide, kNarrow, kNarrow});
}

// Beside small ones; the emulated device runs it alone.
TEST(GroupedProductsTest, ALargeGroupMatchesTheReference) {
  constexpr ProductTypes kTypes = {kWide, kNarrow, kNarrow};
  ExpectGroupedProducts({{0, 2, 2400, 3}, 16, 8}, kTypes);  // sums over the rows
  ExpectGroupedProducts({{0, 2, 130, 3}, 2400, 8}, kTypes);
}

TEST(GroupedProductsTest, EveryCallGivesTheSameBits) {
  for (const MatmulOptions& options : AllGroupedOptions()) {
    GroupedCall call({{130, 0, 3}, 136, 24}, options, {kWide, kNarrow, kNarrow});
    EXPECT_EQ(call.Run(TestedOps()), call.Run(TestedOps()));
  }
}

TEST(GroupedProductsTest, WhatDoesNotFitIsRefused) {
  const auto check = [](const Shape& out, const Shape& a, const Shape& b,
                        const std::vector<int64_t>& rows_of_group, const MatmulOptions& options) {
    const auto tensor = [](const Shape& shape) { return Tensor(nullptr, kWide, shape); };
    ForEachGroup(tensor(out), tensor(a), tensor(b), rows_of_group, options,
                 [](const GroupProduct&) {});
  };
  check({5, 4}, {5, 3}, {6, 4}, {2, 1}, {});
  EXPECT_DEATH(check({5, 4}, {5, 3}, {6, 4}, {2, 4}, {}),
               "a group of 4 rows where 3 of 5 are left");
  EXPECT_DEATH(check({5, 4}, {5, 3}, {6, 4}, {2, -1}, {}), "a group of -1 rows");
  EXPECT_DEATH(check({5, 4}, {5, 3}, {7, 4}, {2, 1}, {}), "the matrices of 2 groups in \\[7, 4\\]");
  EXPECT_DEATH(check({5, 4}, {5, 2}, {6, 4}, {2, 1}, {}), "product of \\[2, 2\\] and \\[3, 4\\]");
  EXPECT_DEATH(check({5, 4}, {5, 3}, {6, 4}, {}, {}), "of no groups");
  EXPECT_DEATH(check({5, 4}, {5, 3}, {6, 4}, {2, 1}, {.transpose_a = true, .transpose_b = true}),
               "two transposed matrices");
}

}  // namespace
}  // namespace twinstream::testing
