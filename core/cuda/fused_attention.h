// FusedAttention: a library's kernels for the causal triangle of scores, beside our own.
// attention.cu chooses. Made by cudnn/fused_attention.cc where the build has cuDNN's frontend; else
// by fused_attention.cc, and there is none.
#pragma once

#include <memory>
#include <string>

#include "core/cuda/stream.h"
#include "core/cuda/workspace.h"
#include "core/ops.h"

namespace twinstream {

class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  // The library and its version, as "cuDNN 9.19.0".
  virtual std::string name() const = 0;
  // As Ops::AttentionForward and AttentionBackward, on the stream of the attention. There is
  // something to do; every tensor but the float32 lse is bf16; all are aligned to 16 bytes. The
  // same bits every time. False, with nothing done, where the library has no kernels for the shape
  // on this card that keep the promises of Ops: of one shape always or never. Dies when its kernels
  // fail.
  virtual bool Forward(const AttentionShape& shape, const AttentionTensors& t) = 0;
  virtual bool Backward(const AttentionShape& shape, const AttentionTensors& t,
                        const AttentionGradients& g) = 0;
};

// On `stream` of the thread's current card, which outlives it, in `workspace`, which only work of
// that stream uses. Null where this build or this host has no such library.
std::unique_ptr<FusedAttention> MakeFusedAttention(gpu::Stream stream, Workspace workspace);

}  // namespace twinstream
