// CudaOps: the operations on a CUDA device's memory, on one stream. One .cu file per kernel family
// implements them; products are cuBLASLt's but for small groups of bf16, attention is in part a
// library's where there is one. Every result has the same bits every time.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "core/cuda/fused_attention.h"
#include "core/cuda/matrix_products.h"
#include "core/cuda/stream.h"
#include "core/cuda/workspace.h"
#include "core/ops.h"

namespace twinstream {

// What kernels ask of a card.
struct Card {
  int multiprocessors;
  bool warpgroup_products;  // whether it has those of gpu/warpgroup.h
};

class CudaOps final : public Ops {
 public:
  // card: the stream's. `workspace` outlives the ops and is theirs alone. fused: made for the same
  // stream and workspace, or null.
  CudaOps(gpu::Stream stream, const Card& card, Workspace workspace,
          std::unique_ptr<FusedAttention> fused)
      : stream_(stream),
        card_(card),
        workspace_(workspace),
        products_(MakeMatrixProducts(stream)),
        fused_(std::move(fused)) {}

  const Card& card() const { return card_; }
  const FusedAttention* fused() const { return fused_.get(); }

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
  void AdamW(const AdamWOptions& options, absl::Span<const AdamWItem> items) const override;
  void SumsOfSquares(Tensor sums, absl::Span<const Tensor> tensors) const override;
  void Add(Tensor out, Tensor a) const override;
  void Cast(Tensor out, Tensor in) const override;
  void Scale(Tensor out, float factor) const override;
  void Zero(Tensor out) const override;

 private:
  gpu::Stream stream_;
  Card card_;
  Workspace workspace_;
  std::unique_ptr<MatrixProducts> products_;
  std::unique_ptr<FusedAttention> fused_;  // attention.cu chooses; null: our own kernels do all
};

}  // namespace twinstream
