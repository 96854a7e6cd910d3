// CudaOps: the operations on a CUDA device's memory, on one stream. One .cu file per kernel family
// implements them; products are cuBLASLt's, but those of bf16 groups. Every result has the same
// bits every time.
#pragma once

#include <cstdint>
#include <memory>

#include "core/cuda/matrix_products.h"
#include "core/ops.h"
#include "gpu/stream.h"

namespace twinstream {

// Memory of the device for what kernels hand each other within one operation.
struct Workspace {
  std::byte* data = nullptr;  // aligned to 256 bytes
  int64_t bytes = 0;

  // The first `elements` of it as T; dies when they do not fit.
  template <class T>
  T* As(int64_t elements) const {
    Check(elements * static_cast<int64_t>(sizeof(T)) <= bytes,
          "an operation needs %d bytes of workspace, there are %d",
          elements * static_cast<int64_t>(sizeof(T)), bytes);
    return reinterpret_cast<T*>(data);
  }
};
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

class CudaOps final : public Ops {
 public:
  // multiprocessors: of the device. `workspace` outlives the ops and is theirs alone.
  CudaOps(gpu::Stream stream, int multiprocessors, Workspace workspace)
      : stream_(stream),
        multiprocessors_(multiprocessors),
        workspace_(workspace),
        products_(MakeMatrixProducts(stream)) {}

  void Matmul(Tensor out, Tensor a, Tensor b, MatmulOptions options) const override;
  void GroupedMatmul(Tensor out, Tensor a, Tensor b, absl::Span<const int64_t> rows_of_group,
                     MatmulOptions options) const override;
  void ResidualForward(const ResidualSite& site, const ResidualForwardTensors& t) const override;
  void ResidualBackward(const ResidualSite& site, const ResidualBackwardTensors& t) const override;
  void QkvForward(const AttentionShape& shape, float eps, const QkvTensors& t) const override;
  void QkvBackward(const AttentionShape& shape, const QkvTensors& t, Tensor dqkv, Tensor dq_norm,
                   Tensor dk_norm, Tensor dv_norm) const override;
  void AttentionForward(const AttentionShape& shape, const AttentionTensors& t) const override;
  void AttentionBackward(const AttentionShape& shape, const AttentionTensors& t,
                         const AttentionGradients& g) const override;
  void AttentionMergeForward(const AttentionShape& shape, const AttentionRectangle& rectangle,
                             const AttentionTensors& t) const override;
  void AttentionMergeBackward(const AttentionShape& shape, const AttentionRectangle& rectangle,
                              const AttentionTensors& t,
                              const AttentionGradients& g) const override;
  void SwiGluForward(Tensor out, Tensor up) const override;
  void SwiGluBackward(Tensor dup, Tensor dout, Tensor up) const override;
  void RouteTokens(const RoutingTensors& t) const override;
  void RouterBackward(const RoutingTensors& t, Tensor weighted,
                      const RouterLossScales& scales) const override;
  void AddRouterLosses(Tensor losses, Tensor loads, Tensor statistics,
                       int64_t top_k) const override;
  void GatherRows(Tensor out, Tensor in, Tensor choices, Tensor weights) const override;
  void CombineRows(Tensor out, Tensor in, Tensor rows, Tensor weights) const override;
  void RowProducts(Tensor out, Tensor a, Tensor b) const override;
  void EmbeddingForward(Tensor out, Tensor tokens, Tensor table, int64_t begin) const override;
  void EmbeddingBackward(Tensor dtable, Tensor tokens, Tensor dout, int64_t begin) const override;
  void LogitStatistics(Tensor statistics, Tensor logits, Tensor targets,
                       int64_t begin) const override;
  void MergeLogitStatistics(Tensor lse, Tensor sums, Tensor gathered,
                            Tensor targets) const override;
  void LogitGradient(Tensor gradient, Tensor logits, Tensor targets, Tensor lse, int64_t begin,
                     TokenLossScales scales) const override;
  void AdamW(const AdamWOptions& options, Tensor weight, Tensor m, Tensor v, Tensor gradient,
             Tensor rounded) const override;
  void SumOfSquares(Tensor sum, Tensor values) const override;
  void Add(Tensor out, Tensor a) const override;
  void Cast(Tensor out, Tensor in) const override;
  void Scale(Tensor out, float factor) const override;
  void Zero(Tensor out) const override;

 private:
  gpu::Stream stream_;
  int multiprocessors_;
  Workspace workspace_;
  std::unique_ptr<MatrixProducts> products_;
};

}  // namespace twinstream
