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
void CudaOps::EmbeddingForward(Tensor /*out*/, Tensor /*tokens*/, Tensor /*table*/,
                               int64_t /*begin*/) const {
  Die("EmbeddingForward");
}
void CudaOps::EmbeddingBackward(Tensor /*dtable*/, Tensor /*tokens*/, Tensor /*dout*/,
                                int64_t /*begin*/) const {
  Die("EmbeddingBackward");
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
