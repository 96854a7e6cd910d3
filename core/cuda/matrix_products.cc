// Products by cuBLASLt: the only file that calls it.
#include "core/cuda/matrix_products.h"

#include <cublasLt.h>

#include <compare>
#include <map>

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

  friend auto operator<=>(const ProductKey&, const ProductKey&) = default;
};

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

void Describe(cublasLtMatrixLayoutOpaque_t& layout, Tensor matrix) {
  Check(cublasLtMatrixLayoutInit(&layout, TypeOf(matrix.dtype()),
                                 static_cast<uint64_t>(matrix.dim(1)),
                                 static_cast<uint64_t>(matrix.dim(0)), matrix.dim(1)),
        "cublasLtMatrixLayoutInit");
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

Preference PreferenceFor(const ProductKey& key) {
  Preference preference;
  preference.Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kProductWorkspaceBytes});
  // Parts of a sum over K are added up in float32: a bf16 result is rounded once.
  preference.Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
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
    Plan& plan = PlanOf(out, a, b, options);
    const float alpha = 1, beta = options.accumulate ? 1 : 0;
    Check(cublasLtMatmul(handle_, &plan.product, &alpha, b.data(), &plan.left, a.data(),
                         &plan.right, &beta, out.data(), &plan.out, out.data(), &plan.out,
                         &plan.algorithm, workspace_.As<void>(), kProductWorkspaceBytes, stream_),
          "cublasLtMatmul");
  }

 private:
  // A training job has a few dozen products, and as many more as experts have numbers of rows.
  static constexpr size_t kMostPlans = 1 << 14;

  Plan& PlanOf(Tensor out, Tensor a, Tensor b, const MatmulOptions& options) {
    const ProductKey key = {.M = out.dim(0),
                            .N = out.dim(1),
                            .K = a.dim(options.transpose_a ? 0 : 1),
                            .transpose_a = options.transpose_a,
                            .transpose_b = options.transpose_b,
                            .operands = a.dtype(),
                            .result = out.dtype(),
                            .alignment_a = AlignmentOf(a),
                            .alignment_b = AlignmentOf(b),
                            .alignment_out = AlignmentOf(out)};
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    if (plans_.size() == kMostPlans) plans_.clear();
    Plan& plan = plans_[key];
    Describe(plan.left, b);
    Describe(plan.right, a);
    Describe(plan.out, out);
    Prepare(key, plan);
    return plan;
  }

  // CUBLAS_COMPUTE_32F: products and sums of float32 operands are float32's, not TF32's.
  void Prepare(const ProductKey& key, Plan& plan) {
    Check(cublasLtMatmulDescInit(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescInit");
    SetTransposed(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b);
    SetTransposed(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a);
    Preference preference = PreferenceFor(key);
    cublasLtMatmulHeuristicResult_t best = {};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, &plan.product, &plan.left, &plan.right, &plan.out,
                                       &plan.out, preference.get(), 1, &best, &found);
    Check(status, "cublasLtMatmulAlgoGetHeuristic");
    Check(found > 0 && best.state == CUBLAS_STATUS_SUCCESS,
          "cuBLASLt has no kernel for a product [%d, %d] over %d of %s into %s", key.M, key.N,
          key.K, NameOf(key.operands), NameOf(key.result));
    plan.algorithm = best.algo;
  }

  gpu::Stream stream_;
  cublasLtHandle_t handle_ = nullptr;
  CudaMemory workspace_{kProductWorkspaceBytes, "cudaMalloc: workspace of cuBLASLt"};
  std::map<ProductKey, Plan> plans_;
};

}  // namespace

std::unique_ptr<MatrixProducts> MakeMatrixProducts(gpu::Stream stream) {
  return std::make_unique<BlasProducts>(stream);
}

}  // namespace twinstream
