#include "tests/testing/product_checks.h"

#include "gtest/gtest.h"
#include "tests/testing/near.h"
#include "tests/testing/vectors.h"

namespace twinstream::testing {

std::vector<MatmulOptions> AllMatmulOptions() {
  std::vector<MatmulOptions> all;
  for (bool transpose_a : {false, true}) {
    for (bool transpose_b : {false, true}) {
      for (bool accumulate : {false, true}) {
        for (bool varying : {false, true}) {
          all.push_back({transpose_a, transpose_b, accumulate, varying});
        }
      }
    }
  }
  return all;
}

std::vector<double> ReferenceProduct(const std::vector<float>& out, const std::vector<float>& a,
                                     const std::vector<float>& b, const ProductSize& size,
                                     const MatmulOptions& options) {
  const auto [M, N, K] = size;
  std::vector<double> expected;
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      double sum = options.accumulate ? out[static_cast<size_t>(m * N + n)] : 0;
      for (int64_t k = 0; k < K; ++k) {
        sum += static_cast<double>(
                   a[static_cast<size_t>(options.transpose_a ? k * M + m : m * K + k)]) *
               b[static_cast<size_t>(options.transpose_b ? n * K + k : k * N + n)];
      }
      expected.push_back(sum);
    }
  }
  return expected;
}

double ProductError(const Ops& ops, const ProductSize& size, const MatmulOptions& options,
                    const ProductTypes& types) {
  const auto [M, N, K] = size;
  std::vector<float> a = RandomFloats(M * K, 1, types.a), b = RandomFloats(K * N, 2, types.b),
                     out = RandomFloats(M * N, 3, types.out);
  const std::vector<double> expected = ReferenceProduct(out, a, b, size, options);
  ops.Matmul(Lent(out, {M, N}, types.out),
             Lent(a, options.transpose_a ? Shape{K, M} : Shape{M, K}, types.a),
             Lent(b, options.transpose_b ? Shape{N, K} : Shape{K, N}, types.b), options);
  return RelativeError(out, expected);
}

void ExpectBf16Products(const Ops& ops, const ProductSize& size, const MatmulOptions& options) {
  constexpr DType kNarrow = DType::kBF16, kWide = DType::kF32;
  for (const ProductTypes& types :
       {ProductTypes{kWide, kNarrow, kNarrow}, ProductTypes{kNarrow, kNarrow, kNarrow},
        ProductTypes{kWide, kWide, kNarrow}, ProductTypes{kWide, kNarrow, kWide},
        ProductTypes{kNarrow, kWide, kNarrow}, ProductTypes{kNarrow, kNarrow, kWide},
        ProductTypes{kNarrow, kWide, kWide}}) {
    EXPECT_LE(ProductError(ops, size, options, types), Tolerance(types.out, size.K))
        << size.M << " " << size.N << " " << size.K << " " << options.transpose_a
        << options.transpose_b << options.accumulate << options.varying << " " << NameOf(types.out)
        << " = " << NameOf(types.a) << " " << NameOf(types.b);
  }
}

}  // namespace twinstream::testing
