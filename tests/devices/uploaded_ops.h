// Ops on a device, for tests whose tensors are in host memory: every call copies its tensors to the
// device, each into an allocation of its own, and back afterwards.
#pragma once

#include "core/device.h"
#include "core/ops.h"

namespace twinstream::testing {

class UploadedOps final : public Ops {
 public:
  explicit UploadedOps(Device& device) : UploadedOps(device, device.ops()) {}
  // Others than its own. Both outlive these.
  UploadedOps(Device& device, const Ops& ops) : device_(device), ops_(ops) {}

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
  Device& device_;
  const Ops& ops_;
};

}  // namespace twinstream::testing
