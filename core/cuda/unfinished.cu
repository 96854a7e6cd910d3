// Operations whose kernels are not written yet.
#include "core/cuda/ops.h"

namespace twinstream {

void CudaOps::QkvForward(const AttentionShape& /*shape*/, float /*eps*/,
                         const QkvTensors& /*t*/) const {
  Die("QkvForward");
}
void CudaOps::QkvBackward(const AttentionShape& /*shape*/, const QkvTensors& /*t*/, Tensor /*dqkv*/,
                          Tensor /*dq_norm*/, Tensor /*dk_norm*/, Tensor /*dv_norm*/) const {
  Die("QkvBackward");
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
void CudaOps::SwiGluForward(Tensor /*out*/, Tensor /*up*/) const { Die("SwiGluForward"); }
void CudaOps::SwiGluBackward(Tensor /*dup*/, Tensor /*dout*/, Tensor /*up*/) const {
  Die("SwiGluBackward");
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
void CudaOps::EmbeddingForward(Tensor /*out*/, Tensor /*tokens*/, Tensor /*table*/,
                               int64_t /*begin*/) const {
  Die("EmbeddingForward");
}
void CudaOps::EmbeddingBackward(Tensor /*dtable*/, Tensor /*tokens*/, Tensor /*dout*/,
                                int64_t /*begin*/) const {
  Die("EmbeddingBackward");
}
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
void CudaOps::AdamW(const AdamWOptions& /*options*/, Tensor /*weight*/, Tensor /*m*/, Tensor /*v*/,
                    Tensor /*gradient*/, Tensor /*rounded*/) const {
  Die("AdamW");
}
void CudaOps::SumOfSquares(Tensor /*sum*/, Tensor /*values*/) const { Die("SumOfSquares"); }
void CudaOps::Cast(Tensor /*out*/, Tensor /*in*/) const { Die("Cast"); }
void CudaOps::Scale(Tensor /*out*/, float /*factor*/) const { Die("Scale"); }
void CudaOps::Zero(Tensor /*out*/) const { Die("Zero"); }

}  // namespace twinstream
