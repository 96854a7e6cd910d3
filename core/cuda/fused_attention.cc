// The build without cuDNN's frontend: attention is by our own kernels alone.
#include "core/cuda/fused_attention.h"

namespace twinstream {

std::unique_ptr<FusedAttention> MakeFusedAttention(gpu::Stream /*stream*/,
                                                   Workspace /*workspace*/) {
  return nullptr;
}

}  // namespace twinstream
