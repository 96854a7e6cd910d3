// Products on every device: of float32, of bf16, and of matrices of different types, as the
// router's.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/testing/near.h"
#include "tests/testing/product_checks.h"
#include "tests/testing/tested_ops.h"
#include "tests/testing/vectors.h"

namespace twinstream::testing {
namespace {

constexpr DType kNarrow = DType::kBF16, kWide = DType::kF32;

TEST(ProductTest, EveryOptionAndOddSizesMatchTheReference) {
  for (const ProductSize& size :
       {ProductSize{1, 1, 1}, ProductSize{1, 7, 5}, ProductSize{5, 1, 9}, ProductSize{3, 4, 1},
        ProductSize{17, 33, 65}, ProductSize{64, 96, 32}, ProductSize{13, 67, 128},
        ProductSize{131, 97, 400}}) {
    for (const MatmulOptions& options : AllMatmulOptions()) {
      EXPECT_LE(ProductError(TestedOps(), size, options), Float32Tolerance(size.K))
          << size.M << " " << size.N << " " << size.K << " " << options.transpose_a
          << options.transpose_b << options.accumulate << options.varying;
    }
  }
}

TEST(ProductTest, Bf16MatricesInEveryPlaceMatchTheReference) {
  for (const ProductSize& size :
       {ProductSize{1, 1, 1}, ProductSize{5, 1, 9}, ProductSize{17, 33, 65},
        ProductSize{13, 67, 128}, ProductSize{70, 67, 33}}) {
    for (const MatmulOptions& options : AllMatmulOptions()) {
      ExpectBf16Products(TestedOps(), size, options);
    }
  }
}

// Copies of 38 MB: more than a device's workspace. A router's logits, and the gradients of its
// input and its weight.
TEST(ProductTest, LargeOnesOfARouterMatchTheReference) {
  constexpr int64_t kTokens = 4700, kWidth = 2051, kExperts = 3;
  EXPECT_LE(ProductError(TestedOps(), {kTokens, kExperts, kWidth}, {.transpose_b = true},
                         {kWide, kNarrow, kWide}),
            Float32Tolerance(kWidth));
  EXPECT_LE(ProductError(TestedOps(), {kTokens, kWidth, kExperts}, {.accumulate = true},
                         {kNarrow, kWide, kWide}),
            Tolerance(kNarrow, kExperts));
  for (bool accumulate : {false, true}) {
    EXPECT_LE(
        ProductError(TestedOps(), {kExperts, kWidth, kTokens},
                     {.transpose_a = true, .accumulate = accumulate}, {kWide, kWide, kNarrow}),
        Float32Tolerance(kTokens))
        << accumulate;
  }
}

// Products whose rows, or sums over K, have so many terms as the next one or round up to that: a
// device that keeps what it has chosen for a product must tell them apart.
TEST(ProductTest, NoneTakesWhatWasChosenForAnother) {
  for (const ProductSize& size :
       {ProductSize{5, 12, 16}, ProductSize{8, 12, 16}, ProductSize{8, 9, 16},
        ProductSize{12, 16, 5}, ProductSize{12, 16, 8}, ProductSize{5, 4, 520},
        ProductSize{5, 4, 1024}}) {
    for (const MatmulOptions& options : AllMatmulOptions()) {
      EXPECT_LE(ProductError(TestedOps(), size, options), Float32Tolerance(size.K))
          << size.M << " " << size.N << " " << size.K << " " << options.transpose_a
          << options.transpose_b << options.accumulate << options.varying;
    }
  }
}

// One after another is not aligned to 16 bytes.
TEST(ProductTest, MatricesMayBeginAnywhere) {
  constexpr int64_t kSize = 8;
  const std::vector<float> a = RandomFloats(kSize * kSize, 1), b = RandomFloats(kSize * kSize, 2),
                           out(a.size());
  const std::vector<double> expected = ReferenceProduct(out, a, b, {kSize, kSize, kSize}, {});
  // With as many elements in front of them.
  for (const auto& [of_a, of_b, of_out] :
       {std::array{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {2, 3, 1}, {0, 0, 0}}) {
    const auto behind = [](int elements, const std::vector<float>& values) {
      std::vector<float> moved(values);
      moved.insert(moved.begin(), static_cast<size_t>(elements), 0.0F);
      return moved;
    };
    std::vector<float> a_there = behind(of_a, a), b_there = behind(of_b, b),
                       out_there = behind(of_out, out);
    const auto matrix = [](std::vector<float>& values, int elements) {
      return Tensor(reinterpret_cast<std::byte*>(values.data() + elements), kWide, {kSize, kSize});
    };
    TestedOps().Matmul(matrix(out_there, of_out), matrix(a_there, of_a), matrix(b_there, of_b), {});
    out_there.erase(out_there.begin(), out_there.begin() + of_out);
    EXPECT_LE(RelativeError(out_there, expected), Float32Tolerance(kSize))
        << of_a << of_b << of_out;
  }
}

TEST(ProductTest, ZeroSizesAreZeroOrUnchanged) {
  const Tensor a(nullptr, kWide, {2, 0}), b(nullptr, kWide, {0, 3});
  std::vector<float> out = {1, 2, 3, 4, 5, 6};
  TestedOps().Matmul(View(out, {2, 3}), a, b, {.accumulate = true});
  EXPECT_EQ(out, std::vector<float>({1, 2, 3, 4, 5, 6}));
  TestedOps().Matmul(View(out, {2, 3}), a, b, {});
  EXPECT_EQ(out, std::vector<float>(6));
  for (const ProductSize& size :
       {ProductSize{0, 3, 4}, ProductSize{3, 0, 4}, ProductSize{0, 0, 0}}) {
    for (const MatmulOptions& options : AllMatmulOptions()) {
      EXPECT_EQ(ProductError(TestedOps(), size, options), 0);
    }
  }
}

}  // namespace
}  // namespace twinstream::testing
