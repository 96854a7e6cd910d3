#include "core/cpu/packed_product.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <vector>

#include "tests/testing/near.h"
#include "tests/testing/vectors.h"

namespace twinstream {
namespace {

using testing::RandomFloats;

// A matrix as it is stored, with rows longer than its own.
struct Stored {
  Stored(int64_t rows, int64_t columns, bool transposed_in, uint32_t seed)
      : stride((transposed_in ? rows : columns) + 3),
        transposed(transposed_in),
        values(RandomFloats((transposed_in ? columns : rows) * stride, seed)) {}

  ProductOperand Operand() const {
    return {.data = values.data(), .stride = stride, .transposed = transposed};
  }
  double At(int64_t row, int64_t column) const {
    return values[static_cast<size_t>(transposed ? column * stride + row : row * stride + column)];
  }

  int64_t stride;
  bool transposed;
  std::vector<float> values;
};

class Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

// Sizes around those of tiles, panels, blocks and depths; rows of the result lie apart, and what is
// between them stays. Eight threads are more than the longest product has tiles or panels.
TEST(PackedProduct, EqualsTheDoubleReferenceInEveryOrientation) {
  constexpr int64_t kGap = 2;
  for (const ProductSizes& sizes :
       {ProductSizes{1, 1, 1}, ProductSizes{5, 15, 7}, ProductSizes{6, 16, 8},
        ProductSizes{67, 33, 320}, ProductSizes{7, 17, 1 << 17}, ProductSizes{61, 1041, 321},
        ProductSizes{130, 64, 645}}) {
    const auto [M, N, K] = sizes;
    for (int form = 0; form < 8; ++form) {
      const bool add = (form & 4) != 0;
      const Stored a(M, K, (form & 1) != 0, 1), b(K, N, (form & 2) != 0, 2);
      SCOPED_TRACE(::testing::Message() << M << " x " << N << " x " << K << ", form " << form);
      const std::vector<float> before = RandomFloats(M * (N + kGap), 3);
      std::vector<double> expected(before.begin(), before.end());
      for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) {
          double& element = expected[static_cast<size_t>(i * (N + kGap) + j)];
          if (!add) element = 0;
          for (int64_t k = 0; k < K; ++k) element += a.At(i, k) * b.At(k, j);
        }
      }
      std::vector<float> on_one_thread;
      for (int threads : {1, 2, 3, 8}) {
        const Threads limit(threads);
        std::vector<float> result = before;
        PackedProduct(sizes, {.data = result.data(), .stride = N + kGap, .add = add}, a.Operand(),
                      b.Operand());
        EXPECT_LT(testing::RelativeError(result, expected), testing::Float32Tolerance(K + 1));
        for (int64_t i = 0; i < M; ++i) {
          for (int64_t j = N; j < N + kGap; ++j) {
            const auto at = static_cast<size_t>(i * (N + kGap) + j);
            ASSERT_EQ(result[at], before[at]);
          }
        }
        if (threads == 1) on_one_thread = result;
        EXPECT_EQ(result, on_one_thread) << threads << " threads";
      }
    }
  }
}

// Whoever computes a part of a product gets the same bits as who computes all of it.
TEST(PackedProduct, APartHasTheBitsOfTheWhole) {
  constexpr int64_t M = 133, N = 1100, K = 700;
  for (bool a_transposed : {false, true}) {
    for (bool b_transposed : {false, true}) {
      const Stored a(M, K, a_transposed, 1), b(K, N, b_transposed, 2);
      std::vector<float> whole(M * N), part(M * N);
      PackedProduct({M, N, K}, {whole.data(), N}, a.Operand(), b.Operand());
      for (int64_t row = 0; row < M; row += 19) {
        for (int64_t column = 0; column < N; column += 275) {
          ProductOperand rows = a.Operand(), columns = b.Operand();
          rows.data += row * (a_transposed ? 1 : rows.stride);
          columns.data += column * (b_transposed ? columns.stride : 1);
          PackedProduct({19, 275, K}, {part.data() + row * N + column, N}, rows, columns);
        }
      }
      EXPECT_EQ(part, whole);
    }
  }
}

}  // namespace
}  // namespace twinstream
