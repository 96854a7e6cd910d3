#include "core/cpu/packed_product.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <optional>
#include <vector>

#include "tests/testing/near.h"
#include "tests/testing/product_checks.h"
#include "tests/testing/vectors.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

using testing::RandomFloats;

// Element (row, column) of a dense matrix of `columns` columns.
size_t At(int64_t row, int64_t column, int64_t columns) {
  return static_cast<size_t>(row * columns + column);
}

// A dense matrix, stored with rows longer than its own, or so transposed.
class Stored {
 public:
  struct Form {
    bool transposed;
    DType dtype;
  };
  Stored(const std::vector<float>& dense, int64_t columns, Form form) : form_(form) {
    const int64_t rows = static_cast<int64_t>(dense.size()) / columns;
    stride_ = (form.transposed ? rows : columns) + 3;
    values_.assign(At(form.transposed ? columns : rows, 0, stride_), NAN);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) values_[Place(i, j)] = dense[At(i, j, columns)];
    }
    lent_.emplace(values_, Shape{static_cast<int64_t>(values_.size())}, form.dtype);
  }

  // Without its first rows and columns.
  ProductOperand Operand(int64_t row = 0, int64_t column = 0) const {
    return {.data = Tensor(*lent_).data() +
                    static_cast<int64_t>(Place(row, column)) * SizeOf(form_.dtype),
            .dtype = form_.dtype,
            .stride = stride_,
            .transposed = form_.transposed};
  }

 private:
  size_t Place(int64_t row, int64_t column) const {
    return form_.transposed ? At(column, row, stride_) : At(row, column, stride_);
  }

  Form form_;
  int64_t stride_;
  std::vector<float> values_;
  std::optional<testing::Lent> lent_;
};

// f(type of a, type of b)
template <class F>
void ForEachTypes(F f) {
  for (const DType a : testing::kActivationTypes) {
    for (const DType b : testing::kActivationTypes) f(a, b);
  }
}

// f(a transposed, b transposed, type of the result)
template <class F>
void ForEachForm(F f) {
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      for (const DType result : testing::kActivationTypes) f(a, b, result);
    }
  }
}

class Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

// Rows of a result lie so far apart, and what is between them stays.
constexpr int64_t kGap = 2;

struct Case {
  ProductSizes sizes;
  const Stored &a, &b;
  const std::vector<double>& product;  // [M, N]
  DType result;
  bool add;
};

// Eight threads are more than the longest product has tiles or panels.
void ExpectProduct(const Case& c) {
  const auto [M, N, K] = c.sizes;
  const int64_t stride = N + kGap;
  const std::vector<float> before = RandomFloats(M * stride, 3, c.result);
  std::vector<double> expected(before.begin(), before.end());
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t j = 0; j < N; ++j) {
      double& element = expected[At(i, j, stride)];
      element = c.product[At(i, j, N)] + (c.add ? element : 0);
    }
  }
  std::vector<float> on_one_thread;
  for (int threads : {1, 2, 3, 8}) {
    const Threads limit(threads);
    std::vector<float> result = before;
    {
      const testing::Lent lent(result, {M, stride}, c.result);
      PackedProduct(
          c.sizes, {.data = Tensor(lent).data(), .dtype = c.result, .stride = stride, .add = c.add},
          c.a.Operand(), c.b.Operand());
    }
    EXPECT_LT(testing::RelativeError(result, expected), testing::Tolerance(c.result, K + 1));
    for (int64_t i = 0; i < M; ++i) {
      for (int64_t j = N; j < stride; ++j) {
        ASSERT_EQ(result[At(i, j, stride)], before[At(i, j, stride)]);
      }
    }
    if (threads == 1) on_one_thread = result;
    EXPECT_EQ(result, on_one_thread) << threads << " threads";
  }
}

// Sizes around those of tiles, panels, blocks and depths.
TEST(PackedProduct, EqualsTheDoubleReferenceInEveryForm) {
  for (const ProductSizes& sizes :
       {ProductSizes{1, 1, 1}, ProductSizes{5, 15, 7}, ProductSizes{6, 16, 8},
        ProductSizes{67, 33, 320}, ProductSizes{7, 17, 1 << 14}, ProductSizes{61, 1041, 321},
        ProductSizes{130, 64, 645}, ProductSizes{967, 18, 325}}) {
    const auto [M, N, K] = sizes;
    ForEachTypes([&, M = M, N = N, K = K](DType a_type, DType b_type) {
      const std::vector<float> a = RandomFloats(M * K, 1, a_type),
                               b = RandomFloats(K * N, 2, b_type);
      const std::vector<double> product =
          testing::ReferenceProduct(std::vector<float>(At(M, 0, N)), a, b, {M, N, K}, {});
      ForEachForm([&](bool a_transposed, bool b_transposed, DType result) {
        const Stored a_stored(a, K, {a_transposed, a_type}), b_stored(b, N, {b_transposed, b_type});
        for (const bool add : {false, true}) {
          SCOPED_TRACE(::testing::Message()
                       << M << " x " << N << " x " << K << ", a " << NameOf(a_type)
                       << (a_transposed ? " transposed" : "") << ", b " << NameOf(b_type)
                       << (b_transposed ? " transposed" : "") << ", result " << NameOf(result)
                       << (add ? " added to" : ""));
          ExpectProduct({sizes, a_stored, b_stored, product, result, add});
        }
      });
    });
  }
}

// Whoever computes a part of a product gets the same bits as who computes all of it.
TEST(PackedProduct, APartHasTheBitsOfTheWhole) {
  constexpr int64_t M = 133, N = 1100, K = 700;
  ForEachTypes([&](DType a_type, DType b_type) {
    const std::vector<float> a = RandomFloats(M * K, 1, a_type), b = RandomFloats(K * N, 2, b_type);
    ForEachForm([&](bool a_transposed, bool b_transposed, DType result) {
      const Stored a_stored(a, K, {a_transposed, a_type}), b_stored(b, N, {b_transposed, b_type});
      std::vector<float> whole(M * N), part(M * N);
      {
        const testing::Lent whole_lent(whole, {M, N}, result), part_lent(part, {M, N}, result);
        PackedProduct({M, N, K}, {Tensor(whole_lent).data(), result, N}, a_stored.Operand(),
                      b_stored.Operand());
        for (int64_t row = 0; row < M; row += 19) {
          for (int64_t column = 0; column < N; column += 275) {
            std::byte* const first = Tensor(part_lent).data() + (row * N + column) * SizeOf(result);
            PackedProduct({19, 275, K}, {first, result, N}, a_stored.Operand(row, 0),
                          b_stored.Operand(0, column));
          }
        }
      }
      EXPECT_EQ(part, whole);
    });
  });
}

}  // namespace
}  // namespace twinstream::TWINSTREAM_CPU_ISA
