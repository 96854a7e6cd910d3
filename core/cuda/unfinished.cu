// Operations whose kernels are not written yet.
#include "core/cuda/ops.h"

namespace twinstream {

void CudaOps::ResidualForward(const ResidualSite& /*site*/,
                              const ResidualForwardTensors& /*t*/) const {
  Die("ResidualForward");
}
void CudaOps::ResidualBackward(const ResidualSite& /*site*/,
                               const ResidualBackwardTensors& /*t*/) const {
  Die("ResidualBackward");
}
void CudaOps::AttentionForward(const AttentionShape& /*shape*/,
                               const AttentionTensors& /*t*/) const {
  Die("AttentionForward");
}
void CudaOps::AttentionBackward(const AttentionShape& /*shape*/, const AttentionTensors& /*t*/,
                                const AttentionGradients& /*g*/) const {
  Die("AttentionBackward");
}
void CudaOps::AttentionMergeForward(const AttentionShape& /*shape*/,
                                    const AttentionRectangle& /*rectangle*/,
                                    const AttentionTensors& /*t*/) const {
  Die("AttentionMergeForward");
}
void CudaOps::AttentionMergeBackward(const AttentionShape& /*shape*/,
                                     const AttentionRectangle& /*rectangle*/,
                                     const AttentionTensors& /*t*/,
                                     const AttentionGradients& /*g*/) const {
  Die("AttentionMergeBackward");
}
void CudaOps::RouteTokens(const RoutingTensors& /*t*/) const { Die("RouteTokens"); }
void CudaOps::RouterBackward(const RoutingTensors& /*t*/, Tensor /*weighted*/,
                             const RouterLossScales& /*scales*/) const {
  Die("RouterBackward");
}
void CudaOps::AddRouterLosses(Tensor /*losses*/, Tensor /*loads*/, Tensor /*statistics*/,
                              int64_t /*top_k*/) const {
  Die("AddRouterLosses");
}
void CudaOps::GatherRows(Tensor /*out*/, Tensor /*in*/, Tensor /*choices*/,
                         Tensor /*weights*/) const {
  Die("GatherRows");
}
void CudaOps::CombineRows(Tensor /*out*/, Tensor /*in*/, Tensor /*rows*/,
                          Tensor /*weights*/) const {
  Die("CombineRows");
}
void CudaOps::RowProducts(Tensor /*out*/, Tensor /*a*/, Tensor /*b*/) const { Die("RowProducts"); }
void CudaOps::LogitStatistics(Tensor /*statistics*/, Tensor /*logits*/, Tensor /*targets*/,
                              int64_t /*begin*/) const {
  Die("LogitStatistics");
}
void CudaOps::MergeLogitStatistics(Tensor /*lse*/, Tensor /*sums*/, Tensor /*gathered*/,
                                   Tensor /*targets*/) const {
  Die("MergeLogitStatistics");
}
void CudaOps::LogitGradient(Tensor /*gradient*/, Tensor /*logits*/, Tensor /*targets*/,
                            Tensor /*lse*/, int64_t /*begin*/, TokenLossScales /*scales*/) const {
  Die("LogitGradient");
}

}  // namespace twinstream
