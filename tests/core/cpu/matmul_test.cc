// Each way in which the CPU computes products; those that this machine takes: product_test.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "core/cpu/ops.h"
#include "tests/testing/near.h"
#include "tests/testing/product_checks.h"
#include "tests/testing/vectors.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

using testing::Lent;
using testing::ProductError;
using testing::ProductSize;

Tensor TensorOf(std::vector<float>& values, int64_t rows, int64_t columns) {
  return Tensor(reinterpret_cast<std::byte*>(values.data()), DType::kF32, {rows, columns});
}

// Widened ones, as where oneDNN has no bf16 products. What this machine is good at: product_test.
TEST(MatmulTest, Bf16MatricesInEveryPlaceMatchTheReference) {
  const CpuOps ops(BFloat16Products::kWidened);
  for (const ProductSize& size :
       {ProductSize{1, 1, 1}, ProductSize{5, 1, 9}, ProductSize{17, 33, 65},
        ProductSize{13, 67, 128}, ProductSize{70, 67, 33}}) {
    for (const MatmulOptions& options : testing::AllMatmulOptions()) {
      testing::ExpectBf16Products(ops, size, options);
    }
  }
}

// More of K than fits into a panel with all of M and N: several panels in both, the last ones
// smaller. Against the float32 product of the same numbers, which has no panels.
TEST(MatmulTest, PanelsOfAWidenedProductFitTogether) {
  constexpr int64_t M = 70, N = 131, K = 1 << 14;
  const CpuOps ops(BFloat16Products::kWidened);
  std::vector<float> a = testing::RandomFloats(M * K, 1, DType::kBF16),
                     b = testing::RandomFloats(K * N, 2, DType::kBF16);
  for (const MatmulOptions& options : testing::AllMatmulOptions()) {
    const Shape a_shape = options.transpose_a ? Shape{K, M} : Shape{M, K},
                b_shape = options.transpose_b ? Shape{N, K} : Shape{K, N};
    std::vector<float> expected = testing::RandomFloats(M * N, 3), wide = expected, narrow(M * N);
    ops.Matmul(TensorOf(expected, M, N), TensorOf(a, a_shape[0], a_shape[1]),
               TensorOf(b, b_shape[0], b_shape[1]), options);
    const std::vector<double> doubles = testing::ToDouble(expected);
    const Lent a_lent(a, a_shape, DType::kBF16), b_lent(b, b_shape, DType::kBF16);
    ops.Matmul(TensorOf(wide, M, N), a_lent, b_lent, options);
    EXPECT_LE(testing::RelativeError(wide, doubles), testing::Float32Tolerance(K));
    if (options.accumulate) continue;
    ops.Matmul(Lent(narrow, {M, N}, DType::kBF16), a_lent, b_lent, options);
    EXPECT_LE(testing::RelativeError(narrow, doubles), testing::Tolerance(DType::kBF16, K));
  }
}

// Small products, so that most of the time goes into what ranks could share by mistake.
TEST(MatmulTest, RanksAsThreadsMayUseOneDevice) {
  constexpr ProductSize kSize = {8, 8, 8};
  const CpuOps ops;
  std::vector<double> errors(4, 1);
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < errors.size(); ++rank) {
    ranks.emplace_back([&ops, kSize, rank, &error = errors[rank]] {
      std::vector<float> a = testing::RandomFloats(64, rank),
                         b = testing::RandomFloats(64, rank + 100), out(64);
      const std::vector<double> expected = testing::ReferenceProduct(out, a, b, kSize, {});
      error = 0;
      for (int repeat = 0; repeat < 20000; ++repeat) {
        std::fill(out.begin(), out.end(), NAN);
        ops.Matmul(TensorOf(out, 8, 8), TensorOf(a, 8, 8), TensorOf(b, 8, 8), {});
        const double latest = testing::RelativeError(out, expected);
        if (!(latest <= error)) error = latest;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (double error : errors) EXPECT_LE(error, testing::Float32Tolerance(kSize.K));
}

// With K much larger than M and N oneDNN splits the sum over threads, when it may have several.
TEST(MatmulTest, WorksOnSeveralThreadsAndInsideAParallelRegion) {
  const CpuOps ops;
  for (const ProductSize& size : {ProductSize{16, 16, 8192}, ProductSize{70, 67, 700}}) {
    omp_set_num_threads(3);
    EXPECT_LE(ProductError(ops, size, {.transpose_a = true}), testing::Float32Tolerance(size.K));
    std::vector<double> errors(3, 1);
#pragma omp parallel for schedule(static, 1)
    for (size_t i = 0; i < errors.size(); ++i) {
      errors[i] = ProductError(ops, size, {.transpose_a = true, .accumulate = i == 1});
    }
    EXPECT_EQ(omp_get_max_threads(), 3);
    omp_set_num_threads(1);
    for (double error : errors) EXPECT_LE(error, testing::Float32Tolerance(size.K));
  }
}

}  // namespace
}  // namespace twinstream::TWINSTREAM_CPU_ISA
