// Products by cuBLASLt: the only file that calls it.
#include "core/cuda/matrix_products.h"

#include <cublasLt.h>

#include <bit>
#include <compare>
#include <map>
#include <string>

#include "core/cuda/check.h"
#include "core/cuda/stream.h"

namespace twinstream {
namespace {

constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;  // what cuBLAS itself takes on sm_90

// What cuBLASLt's choice of a kernel depends on.
struct ProductKey {
  int64_t M = 0, N = 0, K = 0;
  bool transpose_a = false, transpose_b = false;
  DType operands = DType::kF32, result = DType::kF32;
  uint32_t alignment_a = 0, alignment_b = 0, alignment_out = 0;  // bytes
  bool varying = false;

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy takes the comparison with 0 for a pointer's
  auto operator<=>(const ProductKey&) const = default;
};

std::string TextOf(const ProductKey& key) {
  return absl::StrFormat("[%d, %d]%s times [%d, %d]%s of %s into %s", key.M, key.K,
                         key.transpose_a ? " (transposed)" : "", key.K, key.N,
                         key.transpose_b ? " (transposed)" : "", NameOf(key.operands),
                         NameOf(key.result));
}

// cuBLASLt's matrices are stored by columns: a matrix of ours is the transpose of one of its, in
// the same memory. So it computes out' = b' a': b is its left operand and a its right one.
struct Plan {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t left, right, out;
  cublasLtMatmulAlgo_t algorithm;
};

cudaDataType TypeOf(DType dtype) { return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }

// In bytes, as far as kernels care. Not the whole of it: equal products in other places would get
// other kernels, and other bits.
uint32_t AlignmentOf(Tensor tensor) {
  constexpr uintptr_t kMost = 16;
  const auto address = reinterpret_cast<uintptr_t>(tensor.data()) | kMost;
  return static_cast<uint32_t>(address & -address);
}

ProductKey KeyOf(Tensor out, Tensor a, Tensor b, const MatmulOptions& options) {
  return {.M = out.dim(0),
          .N = out.dim(1),
          .K = a.dim(options.transpose_a ? 0 : 1),
          .transpose_a = options.transpose_a,
          .transpose_b = options.transpose_b,
          .operands = a.dtype(),
          .result = out.dtype(),
          .alignment_a = AlignmentOf(a),
          .alignment_b = AlignmentOf(b),
          .alignment_out = AlignmentOf(out),
          .varying = options.varying};
}

// Of a varying product: with as many of the rows that vary as the next power of two.
ProductKey RoundedUp(ProductKey key) {
  int64_t& rows = key.transpose_a ? key.K : key.M;
  rows = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  return key;
}

void SetLayout(cublasLtMatrixLayoutOpaque_t& layout, DType dtype, int64_t rows, int64_t columns) {
  Check(cublasLtMatrixLayoutInit(&layout, TypeOf(dtype), static_cast<uint64_t>(columns),
                                 static_cast<uint64_t>(rows), columns),
        "cublasLtMatrixLayoutInit");
}

// The matrix stored as [rows, columns], or as its transpose.
void SetOperand(cublasLtMatrixLayoutOpaque_t& layout, DType dtype, int64_t rows, int64_t columns,
                bool transposed) {
  SetLayout(layout, dtype, transposed ? columns : rows, transposed ? rows : columns);
}

void SetLayouts(const ProductKey& key, Plan& plan) {
  SetOperand(plan.left, key.operands, key.K, key.N, key.transpose_b);
  SetOperand(plan.right, key.operands, key.M, key.K, key.transpose_a);
  SetLayout(plan.out, key.result, key.M, key.N);
}

void SetTransposed(cublasLtMatmulDescOpaque_t& product, cublasLtMatmulDescAttributes_t operand,
                   bool transposed) {
  const int32_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  Check(cublasLtMatmulDescSetAttribute(&product, operand, &operation, sizeof(operation)),
        "cublasLtMatmulDescSetAttribute");
}

class Preference {
 public:
  Preference() {
    Check(cublasLtMatmulPreferenceInit(&preference_), "cublasLtMatmulPreferenceInit");
  }

  template <class T>
  void Set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    Check(cublasLtMatmulPreferenceSetAttribute(&preference_, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  }
  cublasLtMatmulPreference_t get() { return &preference_; }

 private:
  cublasLtMatmulPreferenceOpaque_t preference_;
};

// schemes: of adding up parts of a sum over K.
Preference PreferenceFor(const ProductKey& key, uint32_t schemes) {
  Preference preference;
  preference.Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kProductWorkspaceBytes});
  preference.Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignment_b);
  preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignment_a);
  preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignment_out);
  preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignment_out);
  return preference;
}

class BlasProducts final : public MatrixProducts {
 public:
  explicit BlasProducts(gpu::Stream stream) : stream_(stream) {
    Check(cublasLtCreate(&handle_), "cublasLtCreate");
  }
  ~BlasProducts() override { Check(cublasLtDestroy(handle_), "cublasLtDestroy"); }
  BlasProducts(const BlasProducts&) = delete;
  BlasProducts& operator=(const BlasProducts&) = delete;

  void Multiply(Tensor out, Tensor a, Tensor b, MatmulOptions options) override {
    const ProductKey key = KeyOf(out, a, b, options);
    Plan& plan = key.varying ? VaryingPlan(key) : PlanOf(key);
    const float alpha = 1, beta = options.accumulate ? 1 : 0;
    Check(cublasLtMatmul(handle_, &plan.product, &alpha, b.data(), &plan.left, a.data(),
                         &plan.right, &beta, out.data(), &plan.out, out.data(), &plan.out,
                         &plan.algorithm, workspace_.As<void>(), kProductWorkspaceBytes, stream_),
          "cublasLtMatmul");
  }

 private:
  // A training job has a few dozen.
  Plan& PlanOf(const ProductKey& key) {
    const auto [found, is_new] = plans_.try_emplace(key);
    if (is_new) Prepare(key, found->second);
    return found->second;
  }

  // To choose an algorithm takes longer than a small product. So all numbers of rows up to a power
  // of two share one, and there are few. They get their own where that cannot do so many, or where
  // the distance between rows in memory, on which an algorithm depends, would be another.
  Plan& VaryingPlan(const ProductKey& key) {
    const bool same_distances = !key.transpose_a || !key.transpose_b;
    if (same_distances) {
      Plan& shared = PlanOf(RoundedUp(key));
      SetLayouts(key, shared);
      if (CanRun(shared)) return shared;
    }
    Prepare(key, own_);
    return own_;
  }

  bool CanRun(Plan& plan) const {
    cublasLtMatmulHeuristicResult_t result = {};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle_, &plan.product, &plan.left, &plan.right, &plan.out,
                                &plan.out, &plan.algorithm, &result);
    return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kProductWorkspaceBytes;
  }

  // CUBLAS_COMPUTE_32F: products and sums of float32 operands are float32's, not TF32's. Parts of a
  // sum over K are added up in float32, so a bf16 result is rounded once; a float32 result allows
  // every way of adding them up.
  void Prepare(const ProductKey& key, Plan& plan) {
    Check(cublasLtMatmulDescInit(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescInit");
    SetTransposed(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b);
    SetTransposed(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a);
    SetLayouts(key, plan);
    const bool found =
        FindAlgorithm(key, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, plan) ||
        (key.result == DType::kF32 && FindAlgorithm(key, CUBLASLT_REDUCTION_SCHEME_MASK, plan));
    Check(found, "cuBLASLt has no kernel for %s, aligned to %d, %d and %d bytes", TextOf(key),
          key.alignment_a, key.alignment_b, key.alignment_out);
  }

  bool FindAlgorithm(const ProductKey& key, uint32_t schemes, Plan& plan) {
    Preference preference = PreferenceFor(key, schemes);
    cublasLtMatmulHeuristicResult_t best = {};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, &plan.product, &plan.left, &plan.right, &plan.out,
                                       &plan.out, preference.get(), 1, &best, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
    Check(status, "cublasLtMatmulAlgoGetHeuristic");
    plan.algorithm = best.algo;
    return found > 0 && best.state == CUBLAS_STATUS_SUCCESS;
  }

  gpu::Stream stream_;
  cublasLtHandle_t handle_ = nullptr;
  CudaMemory workspace_{kProductWorkspaceBytes, "the workspace of cuBLASLt"};
  std::map<ProductKey, Plan> plans_;
  Plan own_ = {};  // of a varying product that cannot share one, until the next
};

}  // namespace

std::unique_ptr<MatrixProducts> MakeMatrixProducts(gpu::Stream stream) {
  return std::make_unique<BlasProducts>(stream);
}

}  // namespace twinstream
