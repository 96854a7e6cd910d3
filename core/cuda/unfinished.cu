// Operations whose kernels are not written yet.
#include "core/cuda/ops.h"

namespace twinstream {

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

}  // namespace twinstream
