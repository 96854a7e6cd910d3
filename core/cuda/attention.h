// What the kernels of attention share: the arguments of a launch, made of one call of an operation.
// Two families: on tensor cores, of bf16 operands (attention_forward.cu,
// attention_query_gradient.cu, attention_key_gradient.cu), and by float32 arithmetic, of all others
// (attention_float.cu); attention.cu chooses.
//   S = q k' / sqrt(D)   P = softmax(S)   O = P v
//   dv = P' dO   dP = dO v'   dS = P . (dP - rowsum(dO . O))   dq = dS k / sqrt(D)
//   dk = dS' q / sqrt(D)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/cuda/kernel.h"
#include "core/ops.h"
#include "gpu/primitives.h"

namespace twinstream::gpu {

struct alignas(8) FloatPair {
  float first, second;
};

// A tensor of activations whose type shows at run time: for what a kernel touches once. Places are
// counted in elements; of a pair they are even, of eight multiples of eight.
struct Activations {
  std::byte* data;
  bool bf16;

  template <class T>
  __device__ T* As() const {
    return reinterpret_cast<T*>(data);
  }
  __device__ float Load(int64_t place) const {
    return bf16 ? static_cast<float>(As<BFloat16>()[place]) : As<float>()[place];
  }
  __device__ void Store(int64_t place, float value) const {
    if (bf16) {
      As<BFloat16>()[place] = value;
    } else {
      As<float>()[place] = value;
    }
  }
  __device__ FloatPair LoadPair(int64_t place) const {
    if (!bf16) return *reinterpret_cast<const FloatPair*>(As<float>() + place);
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(As<BFloat16>() + place);
    return {LowOf(pair), HighOf(pair)};
  }
  __device__ void StorePair(int64_t place, FloatPair pair) const {
    if (bf16) {
      *reinterpret_cast<uint32_t*>(As<BFloat16>() + place) = PackBFloat16(pair.first, pair.second);
    } else {
      *reinterpret_cast<FloatPair*>(As<float>() + place) = pair;
    }
  }
  __device__ Pack<BFloat16> LoadEight(int64_t place) const {
    if (bf16) return LoadPack(As<BFloat16>() + place);
    const Pack<float> low = LoadPack(As<float>() + place), high = LoadPack(As<float>() + place + 4);
    return {{low.values[0], low.values[1], low.values[2], low.values[3], high.values[0],
             high.values[1], high.values[2], high.values[3]}};
  }
};

// Rows of a head in device memory, `stride` elements apart.
struct HeadRows {
  const BFloat16* first;
  int stride;

  __device__ const BFloat16* At(int row) const { return first + int64_t{row} * stride; }
};

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
  __device__ HeadRows Rows(const Activations& x, int head) const {
    return {x.As<BFloat16>() + HeadRow(head, 0), D};
  }
  __device__ HeadRows TokenRows(const Activations& x, int query_head) const {
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
// By float32 arithmetic, of any operands.
void LaunchFloatForward(const gpu::AttentionArguments& arguments, int64_t heads,
                        gpu::Stream stream);
void LaunchFloatQueryGradient(const gpu::AttentionArguments& arguments, int64_t key_heads,
                              gpu::Stream stream);
void LaunchFloatKeyGradient(const gpu::AttentionArguments& arguments, int64_t key_heads,
                            gpu::Stream stream);

}  // namespace twinstream
