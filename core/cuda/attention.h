// What the kernels of attention share: the arguments of a launch, made of one call of an operation.
// Two families: on tensor cores, of bf16 operands (attention_forward.cu,
// attention_query_gradient.cu, attention_key_gradient.cu, on Hopper the files of those names with
// _wgmma), and by float32 arithmetic, of all others (attention_float.cu); attention.cu chooses.
//   S = q k' / sqrt(D)   P = softmax(S)   O = P v
//   dv = P' dO   dP = dO v'   dS = P . (dP - rowsum(dO . O))   dq = dS k / sqrt(D)
//   dk = dS' q / sqrt(D)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/cuda/tiles.h"
#include "core/ops.h"
#include "gpu/primitives.h"

namespace twinstream::gpu {

// A causal triangle of scores, whose results are written, or a rectangle without a mask, whose
// results are taken into those of earlier calls.
enum class ScoreForm { kTriangle, kRectangle };

constexpr float kLog2E = 1.44269504F;  // exp(x) = 2^(kLog2E x)

// The log-sum-exp of all scores from those of some and of the others.
__device__ inline float MergedLse(float some, float others) {
  const float larger = fmaxf(some, others);
  return larger + Log(Exp(some - larger) + Exp(others - larger));
}

// Query heads are counted over the batch, b H + h; so are key heads, b K + kv, and key head c is
// that of the query heads group c .. group c + group - 1.
struct AttentionArguments {
  ScoreForm form;
  int T, D, H;
  int group;  // query heads of one key head
  int query_begin, query_end, key_begin, key_end;
  float scale;             // 1 / sqrt(D)
  Activations q, k, v;     // [B, H|K, T, D]
  Activations out, dout;   // [B*T, H*D]
  float* lse;              // [B, H, T]
  Activations dq, dk, dv;  // as q, k, v
  // Backward's launches: of the key heads from this one on; delta, rowsum(dO . O), of their query
  // heads [.., T].
  int first_key_head;
  float* delta;

  // The tokens' rows [D] of a bf16 head: in a tensor like q or k, and in one like out.
  __device__ StridedRows Rows(const Activations& x, int head) const {
    return {x.As<BFloat16>() + HeadRow(head, 0), D};
  }
  __device__ StridedRows TokenRows(const Activations& x, int query_head) const {
    return {x.As<BFloat16>() + TokenRow(query_head, 0), H * D};
  }
  __device__ int64_t HeadRow(int head, int token) const { return (int64_t{head} * T + token) * D; }
  __device__ int64_t TokenRow(int query_head, int token) const {
    return ((int64_t{query_head / H} * T + token) * H + query_head % H) * D;
  }
  __device__ float& Lse(int query_head, int query) const {
    return lse[int64_t{query_head} * T + query];
  }
  __device__ float& Delta(int query_head, int query) const {
    return delta[int64_t{query_head - first_key_head * group} * T + query];
  }
  // Of a gradient's earlier contents in the new ones.
  __device__ float own_factor() const { return form == ScoreForm::kRectangle ? 1.0F : 0.0F; }
  // The first key that the query does not see.
  __device__ int KeyLimit(int query) const {
    return form == ScoreForm::kTriangle ? std::min(query + 1, key_end) : key_end;
  }
};

}  // namespace twinstream::gpu

namespace twinstream {

// On tensor cores, of bf16 q, k, v and dout; D a multiple of 8 up to 256, every tensor aligned to
// 16 bytes. Of `heads` query heads or `key_heads` key heads, over the batch. The queries' gradient
// leaves the deltas that the keys' reads.
void LaunchTensorForward(const gpu::AttentionArguments& arguments, int64_t heads,
                         gpu::Stream stream);
void LaunchTensorQueryGradient(const gpu::AttentionArguments& arguments, int64_t key_heads,
                               gpu::Stream stream);
void LaunchTensorKeyGradient(const gpu::AttentionArguments& arguments, int64_t key_heads,
                             gpu::Stream stream);
// The same on a card with products of warpgroups (gpu/warpgroup.h), D up to 128.
void LaunchWarpgroupForward(const gpu::AttentionArguments& arguments, int64_t heads,
                            gpu::Stream stream);
void LaunchWarpgroupQueryGradient(const gpu::AttentionArguments& arguments, int64_t key_heads,
                                  gpu::Stream stream);
void LaunchWarpgroupKeyGradient(const gpu::AttentionArguments& arguments, int64_t key_heads,
                                gpu::Stream stream);
// By float32 arithmetic, of any operands.
void LaunchFloatForward(const gpu::AttentionArguments& arguments, int64_t heads,
                        gpu::Stream stream);
void LaunchFloatQueryGradient(const gpu::AttentionArguments& arguments, int64_t key_heads,
                              gpu::Stream stream);
void LaunchFloatKeyGradient(const gpu::AttentionArguments& arguments, int64_t key_heads,
                            gpu::Stream stream);

}  // namespace twinstream
