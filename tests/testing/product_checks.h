// Products of random matrices against a double oracle, for tests of Ops::Matmul.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ops.h"

namespace twinstream::testing {

struct ProductSize {
  int64_t M, N, K;
};

// Dtypes of a product's matrices.
struct ProductTypes {
  DType out = DType::kF32, a = DType::kF32, b = DType::kF32;
};

std::vector<MatmulOptions> AllMatmulOptions();

// out = a b, or out + a b, as the options say.
std::vector<double> ReferenceProduct(const std::vector<float>& out, const std::vector<float>& a,
                                     const std::vector<float>& b, const ProductSize& size,
                                     const MatmulOptions& options);

// The relative error of one product.
double ProductError(const Ops& ops, const ProductSize& size, const MatmulOptions& options,
                    const ProductTypes& types = {});

// Products of bf16 matrices are exact, and their sums are float32's: only a bf16 result is rounded.
// For bf16 in every place, alone and in every mixture.
void ExpectBf16Products(const Ops& ops, const ProductSize& size, const MatmulOptions& options);

}  // namespace twinstream::testing
