// Products of cuBLASLt, by the CPU backend.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/cuda/check.h"
#include "core/cuda/emulated/runtime.h"
#include "core/cuda/emulated/streams.h"
#include "core/device.h"
#include "core/ops.h"

// NOLINTNEXTLINE(readability-identifier-naming): CUDA's
struct cublasLtContext {
  int card;
};

namespace twinstream {
namespace {

using Layout = cublasLtMatrixLayoutOpaque_t;

constexpr uint64_t kInitialized = 0x9D3C5AE17B64F028;
constexpr size_t kA = 0, kB = 1, kC = 2, kD = 3;
constexpr std::array<const char*, 4> kNames = {"A", "B", "C", "D"};

template <class Descriptor>
Descriptor& Initialized(Descriptor* descriptor, const char* what) {
  Check(descriptor != nullptr && descriptor->initialized == kInitialized,
        "cuBLASLt takes %s that was never initialized", what);
  return *descriptor;
}

template <class T>
cublasStatus_t SetMember(T& member, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&member, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

struct Problem {
  cublasLtMatmulDescOpaque_t product;
  std::array<Layout, 4> layouts;  // of A, B, C and D
};

Problem ProblemOf(cublasLtMatmulDesc_t product, const std::array<cublasLtMatrixLayout_t, 4>& from) {
  const auto layout = [&](size_t i) { return Initialized(from[i], "a layout"); };
  return {Initialized(product, "a description of a product"),
          {layout(kA), layout(kB), layout(kC), layout(kD)}};
}

struct Extents {
  uint64_t rows, columns;
};

Extents ExtentsOf(const Layout& layout, int32_t operation) {
  if (operation == CUBLAS_OP_T) return {layout.columns, layout.rows};
  return {layout.rows, layout.columns};
}

bool IsPossible(const Layout& layout) {
  return layout.rows > 0 && layout.columns > 0 && layout.leading_dimension > 0 &&
         static_cast<uint64_t>(layout.leading_dimension) >= layout.rows;
}

bool IsConsistent(const Problem& problem) {
  const auto& [product, layouts] = problem;
  const auto known = [](int32_t operation) {
    return operation == CUBLAS_OP_N || operation == CUBLAS_OP_T;
  };
  const Extents a = ExtentsOf(layouts[kA], product.operation_a),
                b = ExtentsOf(layouts[kB], product.operation_b);
  const Layout &c = layouts[kC], &d = layouts[kD];
  return known(product.operation_a) && known(product.operation_b) &&
         std::all_of(layouts.begin(), layouts.end(), IsPossible) && a.columns == b.rows &&
         a.rows == d.rows && b.columns == d.columns && c.rows == d.rows && c.columns == d.columns;
}

// As cublasLtMatmul's table for CUBLAS_COMPUTE_32F, as far as core/cuda has the types.
bool HasSupportedTypes(const Problem& problem) {
  const auto& [product, layouts] = problem;
  const cudaDataType operands = layouts[kA].type, result = layouts[kD].type;
  return product.compute == CUBLAS_COMPUTE_32F && product.scale == CUDA_R_32F &&
         (operands == CUDA_R_32F || operands == CUDA_R_16BF) && layouts[kB].type == operands &&
         (result == CUDA_R_32F || result == operands) && layouts[kC].type == result;
}

cublasStatus_t StatusOf(cublasLtHandle_t handle, const Problem& problem) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  Check(handle->card == gpu::CurrentCard(),
        "cuBLASLt takes a handle of card %d while the thread's current card is %d", handle->card,
        gpu::CurrentCard());
  if (!IsConsistent(problem)) return CUBLAS_STATUS_INVALID_VALUE;
  return HasSupportedTypes(problem) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

DType TypeOf(const Layout& layout) {
  return layout.type == CUDA_R_16BF ? DType::kBF16 : DType::kF32;
}

// Two parts of D in float32, which are added up in the end.
size_t WorkspaceBytes(cublasLtReductionScheme_t reduction, const Problem& problem) {
  if (reduction == CUBLASLT_REDUCTION_SCHEME_NONE) return 0;
  return 2 * problem.layouts[kD].rows * problem.layouts[kD].columns * sizeof(float);
}

cublasLtReductionScheme_t ReductionFor(const Problem& problem,
                                       const cublasLtMatmulPreferenceOpaque_t& preference) {
  constexpr uint64_t kLongestUndivided = 1000;  // terms of a sum
  constexpr cublasLtReductionScheme_t kParts = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const Extents a = ExtentsOf(problem.layouts[kA], problem.product.operation_a);
  const bool divided = a.columns > kLongestUndivided &&
                       (preference.reduction_schemes & kParts) != 0 &&
                       WorkspaceBytes(kParts, problem) <= preference.workspace_bytes;
  return divided ? kParts : CUBLASLT_REDUCTION_SCHEME_NONE;
}

bool CanDo(const cublasLtMatmulAlgo_t& algorithm, const Problem& problem) {
  constexpr uint64_t kShortestDivided = 600;  // terms of a sum
  const auto& [product, layouts] = problem;
  const bool divided = algorithm.reduction != CUBLASLT_REDUCTION_SCHEME_NONE;
  if (divided && ExtentsOf(layouts[kA], product.operation_a).columns < kShortestDivided) {
    return false;
  }
  const auto alike = [](const Layout& one, const Layout& other) {
    return one.type == other.type && one.leading_dimension == other.leading_dimension;
  };
  return algorithm.product.operation_a == product.operation_a &&
         algorithm.product.operation_b == product.operation_b &&
         std::equal(layouts.begin(), layouts.end(), algorithm.layouts.begin(), alike);
}

// A kernel reads and writes whole elements.
bool CanBeAligned(const Problem& problem, const std::array<uint32_t, 4>& alignments) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    const bool whole = alignments[i] >= SizeOf(TypeOf(problem.layouts[i]));
    if (!whole || !std::has_single_bit(alignments[i])) return false;
  }
  return true;
}

// The CPU's matrices are stored by rows: in the same memory they are the transposes.
Tensor TransposeOf(const void* data, const Layout& layout) {
  return {const_cast<std::byte*>(static_cast<const std::byte*>(data)), TypeOf(layout),
          Shape({static_cast<int64_t>(layout.columns), static_cast<int64_t>(layout.rows)})};
}

void CheckMatrix(const char* name, const void* data, const Layout& layout, uint32_t alignment) {
  Check(data != nullptr && std::bit_cast<uintptr_t>(data) % alignment == 0,
        "cublasLtMatmul: %s is at %p, its algorithm was promised an alignment to %d bytes", name,
        data, alignment);
  Check(static_cast<uint64_t>(layout.leading_dimension) == layout.rows,
        "cublasLtMatmul: the emulation has dense matrices only, %s has %d rows and a leading "
        "dimension of %d",
        name, layout.rows, layout.leading_dimension);
  const int64_t bytes = TransposeOf(data, layout).bytes();
  gpu::CheckOfCurrentCard(data, static_cast<size_t>(bytes), "cublasLtMatmul");
}

struct Area {
  const std::byte* data;
  int64_t bytes;
};

bool AreApart(const Area& one, const Area& other) {
  return one.data + one.bytes <= other.data || other.data + other.bytes <= one.data;
}

void CheckMemory(const Problem& problem, const std::array<uint32_t, 4>& alignments,
                 const std::array<const void*, 4>& matrices, const Area& workspace) {
  constexpr uintptr_t kWorkspaceAlignment = 256;
  Check((workspace.data != nullptr || workspace.bytes == 0) &&
            std::bit_cast<uintptr_t>(workspace.data) % kWorkspaceAlignment == 0,
        "cublasLtMatmul: %d bytes of workspace at %p, which must be aligned to %d bytes",
        workspace.bytes, workspace.data, kWorkspaceAlignment);
  Check(matrices[kC] == matrices[kD], "cublasLtMatmul: the emulation has C only where D is");
  const auto area = [&](size_t i) {
    const Tensor matrix = TransposeOf(matrices[i], problem.layouts[i]);
    return Area{matrix.data(), matrix.bytes()};
  };
  for (size_t i = 0; i < kNames.size(); ++i) {
    CheckMatrix(kNames[i], matrices[i], problem.layouts[i], alignments[i]);
    Check(AreApart(area(i), workspace), "cublasLtMatmul: %s and the workspace overlap", kNames[i]);
  }
  Check(AreApart(area(kA), area(kD)) && AreApart(area(kB), area(kD)),
        "cublasLtMatmul: D overlaps A or B");
}

// From now on there is a kernel for such products: of these extents and types, added to D or not.
void Load(const Problem& problem, float beta) {
  struct Loaded {
    std::mutex mutex;
    std::set<std::string> kernels;
  };
  static Loaded& loaded = *new Loaded;
  if (!gpu::TheHost().loading_waits) return;
  std::string kernel = absl::StrCat(gpu::CurrentCard(), " ", problem.product.operation_a,
                                    problem.product.operation_b, " ", beta);
  for (const Layout& layout : problem.layouts) {
    absl::StrAppend(&kernel, " ", layout.type, " ", layout.rows, "x", layout.columns);
  }
  {
    const std::lock_guard lock(loaded.mutex);
    if (!loaded.kernels.insert(std::move(kernel)).second) return;
  }
  Check(gpu::AwaitCard(gpu::CurrentCard()), "the loading of a kernel");
}

// D' = op(B)' op(A)'. What is kept in the workspace is lost.
void IssueProduct(const Problem& problem, const std::array<const void*, 4>& matrices, float beta,
                  void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  const auto& [product, layouts] = problem;
  const Tensor out = TransposeOf(matrices[kD], layouts[kD]),
               left = TransposeOf(matrices[kB], layouts[kB]),
               right = TransposeOf(matrices[kA], layouts[kA]);
  const MatmulOptions options = {.transpose_a = product.operation_b == CUBLAS_OP_T,
                                 .transpose_b = product.operation_a == CUBLAS_OP_T,
                                 .accumulate = beta != 0};
  gpu::Issue(stream, [=] {
    if (workspace_bytes > 0) std::memset(workspace, 0xFF, workspace_bytes);
    // Made anew, which costs nothing: a recorded product may be done when its handle is no more.
    MakeDevice("cpu").value()->ops().Matmul(out, left, right, options);
  });
}

}  // namespace
}  // namespace twinstream

using twinstream::Check;
using twinstream::Initialized;
using twinstream::kInitialized;
using twinstream::Problem;
using twinstream::ProblemOf;
using twinstream::SetMember;
using twinstream::StatusOf;

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the requested functionality is not supported";
  }
  return "unrecognized status";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext{twinstream::gpu::CurrentCard()};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return handle == nullptr ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t product, cublasComputeType_t compute,
                                      cudaDataType scale) {
  *product = {kInitialized, compute, scale, CUBLAS_OP_N, CUBLAS_OP_N};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  Initialized(product, "a description of a product");
  const bool of_a = attribute == CUBLASLT_MATMUL_DESC_TRANSA;
  return SetMember(of_a ? product->operation_a : product->operation_b, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType type,
                                        uint64_t rows, uint64_t columns,
                                        int64_t leading_dimension) {
  *layout = {kInitialized, type, rows, columns, leading_dimension};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  *preference = {kInitialized, 0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  Initialized(preference, "a preference");
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return SetMember(preference->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return SetMember(preference->reduction_schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: {
      const int matrix = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
      return SetMember(preference->alignments[static_cast<size_t>(matrix)], value, bytes);
    }
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

// NOLINTBEGIN(readability-function-size): CUDA's parameters
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  const Problem problem = ProblemOf(product, {a, b, c, d});
  const cublasLtMatmulPreferenceOpaque_t& wanted = Initialized(preference, "a preference");
  *found = 0;
  if (requested <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  const cublasStatus_t status = StatusOf(handle, problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (!CanBeAligned(problem, wanted.alignments)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const cublasLtReductionScheme_t reduction = ReductionFor(problem, wanted);
  results[0] = {{kInitialized, problem.product, problem.layouts, wanted.alignments, reduction},
                WorkspaceBytes(reduction, problem),
                status,
                /*wavesCount=*/1,
                /*reserved=*/{}};
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const Problem problem = ProblemOf(product, {a, b, c, d});
  const cublasLtMatmulAlgo_t& chosen = Initialized(algorithm, "an algorithm");
  const cublasStatus_t status = StatusOf(handle, problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (!CanDo(chosen, problem)) return CUBLAS_STATUS_INVALID_VALUE;
  result->workspaceSize = WorkspaceBytes(chosen.reduction, problem);
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  twinstream::gpu::CheckOnCurrentCard(stream, "cublasLtMatmul");
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, product, a_layout, b_layout,
                                                        c_layout, d_layout, algorithm, &result);
  Check(status == CUBLAS_STATUS_SUCCESS, "cublasLtMatmul, with its algorithm: %s",
        cublasLtGetStatusString(status));
  Check(result.workspaceSize <= workspace_bytes,
        "cublasLtMatmul: a workspace of %d bytes, the algorithm needs %d", workspace_bytes,
        result.workspaceSize);
  const Problem problem = ProblemOf(product, {a_layout, b_layout, c_layout, d_layout});
  const std::array<const void*, 4> matrices = {a, b, c, d};
  CheckMemory(problem, algorithm->alignments, matrices,
              {static_cast<const std::byte*>(workspace), static_cast<int64_t>(workspace_bytes)});
  Check(alpha != nullptr && beta != nullptr, "cublasLtMatmul: alpha or beta is missing");
  const float factor = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
  Check(factor == 1 && (kept == 0 || kept == 1),
        "cublasLtMatmul: the emulation has no alpha of %g with a beta of %g", factor, kept);
  Load(problem, kept);
  IssueProduct(problem, matrices, kept, workspace, result.workspaceSize, stream);
  return CUBLAS_STATUS_SUCCESS;
}
// NOLINTEND(readability-function-size)
