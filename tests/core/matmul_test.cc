#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "core/cpu/ops.h"
#include "tests/testing/near.h"
#include "tests/testing/vectors.h"

namespace twinstream {
namespace {

using testing::Lent;

struct Size {
  int64_t M, N, K;
};

Tensor TensorOf(std::vector<float>& values, int64_t rows, int64_t columns) {
  return Tensor(reinterpret_cast<std::byte*>(values.data()), DType::kF32, {rows, columns});
}

std::vector<double> Reference(const std::vector<float>& old, const std::vector<float>& a,
                              const std::vector<float>& b, const Size& size,
                              const MatmulOptions& options) {
  const auto [M, N, K] = size;
  std::vector<double> out;
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      double sum = options.accumulate ? old[static_cast<size_t>(m * N + n)] : 0;
      for (int64_t k = 0; k < K; ++k) {
        sum += static_cast<double>(
                   a[static_cast<size_t>(options.transpose_a ? k * M + m : m * K + k)]) *
               b[static_cast<size_t>(options.transpose_b ? n * K + k : k * N + n)];
      }
      out.push_back(sum);
    }
  }
  return out;
}

// Dtypes of a product's matrices.
struct Types {
  DType out = DType::kF32, a = DType::kF32, b = DType::kF32;
};

// The relative error of one product of random matrices.
double Error(const CpuOps& ops, const Size& size, const MatmulOptions& options,
             const Types& types = {}) {
  const auto [M, N, K] = size;
  std::vector<float> a = testing::RandomFloats(M * K, 1, types.a),
                     b = testing::RandomFloats(K * N, 2, types.b),
                     out = testing::RandomFloats(M * N, 3, types.out);
  const std::vector<double> expected = Reference(out, a, b, size, options);
  ops.Matmul(Lent(out, {M, N}, types.out),
             Lent(a, options.transpose_a ? Shape{K, M} : Shape{M, K}, types.a),
             Lent(b, options.transpose_b ? Shape{N, K} : Shape{K, N}, types.b), options);
  return testing::RelativeError(out, expected);
}

std::vector<MatmulOptions> AllOptions() {
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

TEST(MatmulTest, EveryOptionAndOddSizesMatchTheReference) {
  const CpuOps ops;
  for (const Size& size : {Size{1, 1, 1}, Size{1, 7, 5}, Size{5, 1, 9}, Size{3, 4, 1},
                           Size{17, 33, 65}, Size{64, 96, 32}, Size{13, 67, 128}}) {
    for (const MatmulOptions& options : AllOptions()) {
      EXPECT_LE(Error(ops, size, options), testing::Float32Tolerance(size.K))
          << size.M << " " << size.N << " " << size.K << " " << options.transpose_a
          << options.transpose_b << options.accumulate << options.varying;
    }
  }
}

// Products of bf16 matrices are exact, and their sums are float32's: only a bf16 result is rounded.
void ExpectBf16Products(const CpuOps& ops, const Size& size, const MatmulOptions& options) {
  constexpr DType kNarrow = DType::kBF16, kWide = DType::kF32;
  for (const Types& types : {Types{kWide, kNarrow, kNarrow}, Types{kNarrow, kNarrow, kNarrow},
                             Types{kWide, kWide, kNarrow}, Types{kWide, kNarrow, kWide},
                             Types{kNarrow, kWide, kNarrow}, Types{kNarrow, kWide, kWide}}) {
    EXPECT_LE(Error(ops, size, options, types), testing::Tolerance(types.out, size.K))
        << size.M << " " << size.N << " " << size.K << " " << options.transpose_a
        << options.transpose_b << options.accumulate << " " << NameOf(types.out) << " = "
        << NameOf(types.a) << " " << NameOf(types.b);
  }
}

TEST(MatmulTest, Bf16MatricesInEveryPlaceMatchTheReference) {
  for (const Size& size : {Size{1, 1, 1}, Size{5, 1, 9}, Size{17, 33, 65}, Size{13, 67, 128}}) {
    for (const MatmulOptions& options : AllOptions()) {
      ExpectBf16Products(CpuOps(Bf16Products::kWidened), size, options);
      ExpectBf16Products(CpuOps(), size, options);  // what this machine is good at
    }
  }
}

// More of K than fits into a panel with all of M and N: several panels in both, the last ones
// smaller. Against the float32 product of the same numbers, which has no panels.
TEST(MatmulTest, PanelsOfAWidenedProductFitTogether) {
  constexpr int64_t M = 70, N = 131, K = 1 << 14;
  const CpuOps ops(Bf16Products::kWidened);
  std::vector<float> a = testing::RandomFloats(M * K, 1, DType::kBF16),
                     b = testing::RandomFloats(K * N, 2, DType::kBF16);
  for (const MatmulOptions& options : AllOptions()) {
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

TEST(MatmulTest, ZeroSizesAreZeroOrUnchanged) {
  const CpuOps ops;
  std::vector<float> none(1), out = {1, 2, 3, 4, 5, 6};
  ops.Matmul(TensorOf(out, 2, 3), TensorOf(none, 2, 0), TensorOf(none, 0, 3), {.accumulate = true});
  EXPECT_EQ(out, std::vector<float>({1, 2, 3, 4, 5, 6}));
  ops.Matmul(TensorOf(out, 2, 3), TensorOf(none, 2, 0), TensorOf(none, 0, 3), {});
  EXPECT_EQ(out, std::vector<float>(6));
  for (const Size& size : {Size{0, 3, 4}, Size{3, 0, 4}, Size{0, 0, 0}}) {
    for (const MatmulOptions& options : AllOptions()) EXPECT_EQ(Error(ops, size, options), 0);
  }
}

// Small products, so that most of the time goes into what ranks could share by mistake.
TEST(MatmulTest, RanksAsThreadsMayUseOneDevice) {
  constexpr Size kSize = {8, 8, 8};
  const CpuOps ops;
  std::vector<double> errors(4, 1);
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < errors.size(); ++rank) {
    ranks.emplace_back([&ops, kSize, rank, &error = errors[rank]] {
      std::vector<float> a = testing::RandomFloats(64, rank),
                         b = testing::RandomFloats(64, rank + 100), out(64);
      const std::vector<double> expected = Reference(out, a, b, kSize, {});
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
  constexpr Size kSize = {16, 16, 8192};
  const CpuOps ops;
  omp_set_num_threads(3);
  EXPECT_LE(Error(ops, kSize, {.transpose_a = true}), testing::Float32Tolerance(kSize.K));
  std::vector<double> errors(3, 1);
#pragma omp parallel for schedule(static, 1)
  for (size_t i = 0; i < errors.size(); ++i) {
    errors[i] = Error(ops, kSize, {.transpose_a = true, .accumulate = i == 1});
  }
  EXPECT_EQ(omp_get_max_threads(), 3);
  omp_set_num_threads(1);
  for (double error : errors) EXPECT_LE(error, testing::Float32Tolerance(kSize.K));
}

}  // namespace
}  // namespace twinstream
