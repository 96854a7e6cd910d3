// Products whose matrices have different types, as the router's.
#include <gtest/gtest.h>

#include <vector>

#include "core/ops.h"
#include "tests/testing/near.h"
#include "tests/testing/tested_ops.h"
#include "tests/testing/vectors.h"

namespace twinstream {
namespace {

using testing::Lent;

struct Size {
  int64_t M, N, K;
};

struct Types {
  DType out, a, b;
};

double Element(const std::vector<float>& matrix, int64_t row, int64_t column, const Shape& stored,
               bool transposed) {
  return matrix[static_cast<size_t>(transposed ? column * stored[1] + row
                                               : row * stored[1] + column)];
}

// The relative error of one product of random matrices.
double Error(const Size& size, const MatmulOptions& options, const Types& types) {
  const auto [M, N, K] = size;
  const Shape a_shape = options.transpose_a ? Shape{K, M} : Shape{M, K},
              b_shape = options.transpose_b ? Shape{N, K} : Shape{K, N};
  std::vector<float> a = testing::RandomFloats(M * K, 1, types.a),
                     b = testing::RandomFloats(K * N, 2, types.b),
                     out = testing::RandomFloats(M * N, 3, types.out);
  std::vector<double> expected;
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      double sum = options.accumulate ? out[static_cast<size_t>(m * N + n)] : 0;
      for (int64_t k = 0; k < K; ++k) {
        sum += Element(a, m, k, a_shape, options.transpose_a) *
               Element(b, k, n, b_shape, options.transpose_b);
      }
      expected.push_back(sum);
    }
  }
  testing::TestedOps().Matmul(Lent(out, {M, N}, types.out), Lent(a, a_shape, types.a),
                              Lent(b, b_shape, types.b), options);
  return testing::RelativeError(out, expected);
}

constexpr DType kNarrow = DType::kBF16, kWide = DType::kF32;

TEST(MixedProductTest, EveryMixtureAndOptionMatchesTheReference) {
  for (const Types& types :
       {Types{kWide, kWide, kNarrow}, Types{kWide, kNarrow, kWide}, Types{kNarrow, kWide, kNarrow},
        Types{kNarrow, kNarrow, kWide}, Types{kNarrow, kWide, kWide}}) {
    for (int options = 0; options < 8; ++options) {
      const MatmulOptions matmul = {.transpose_a = (options & 1) != 0,
                                    .transpose_b = (options & 2) != 0,
                                    .accumulate = (options & 4) != 0};
      EXPECT_LE(Error({13, 67, 33}, matmul, types), testing::Tolerance(types.out, 33))
          << options << " " << NameOf(types.out) << " = " << NameOf(types.a) << " "
          << NameOf(types.b);
    }
  }
}

// Copies of 38 MB: more than a device's workspace. A router's logits, and the gradients of its
// input and its weight.
TEST(MixedProductTest, LargeOnesOfARouterMatchTheReference) {
  constexpr int64_t kTokens = 4700, kWidth = 2051, kExperts = 3;
  EXPECT_LE(Error({kTokens, kExperts, kWidth}, {.transpose_b = true}, {kWide, kNarrow, kWide}),
            testing::Float32Tolerance(kWidth));
  EXPECT_LE(Error({kTokens, kWidth, kExperts}, {.accumulate = true}, {kNarrow, kWide, kWide}),
            testing::Tolerance(kNarrow, kExperts));
  EXPECT_LE(Error({kExperts, kWidth, kTokens}, {.transpose_a = true, .accumulate = true},
                  {kWide, kWide, kNarrow}),
            testing::Float32Tolerance(kTokens));
}

}  // namespace
}  // namespace twinstream
