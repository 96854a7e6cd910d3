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

// The relative error of one product of random matrices.
double Error(const CpuOps& ops, const Size& size, const MatmulOptions& options) {
  const auto [M, N, K] = size;
  std::vector<float> a = testing::RandomFloats(M * K, 1), b = testing::RandomFloats(K * N, 2),
                     out = testing::RandomFloats(M * N, 3);
  const std::vector<double> expected = Reference(out, a, b, size, options);
  ops.Matmul(TensorOf(out, M, N), options.transpose_a ? TensorOf(a, K, M) : TensorOf(a, M, K),
             options.transpose_b ? TensorOf(b, N, K) : TensorOf(b, K, N), options);
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
