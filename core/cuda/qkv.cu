// Head norms, rotary embedding and the change to head-major layout, in one pass over qkv, on a CUDA
// device. A warp takes the heads of one kind (q, k or v) of a token, several at a time: so many
// lanes as a head needs to hold element j of its first half and of its second in the same lane.
// Floors, per element of qkv: forward 2 SizeOf(T) bytes, backward 2 SizeOf(T), with a norm 3
// SizeOf(T).
#include <algorithm>

#include "core/activation_type.h"
#include "core/cuda/kernel.h"
#include "core/cuda/ops.h"
#include "core/op_checks.h"

namespace twinstream {
namespace {

using gpu::CeilingOfQuotient;
using gpu::kWarpLanes;
using gpu::LoadValues;
using gpu::StoreValues;
using gpu::ThisLane;
using gpu::ThisThread;
using gpu::ThisWarp;

constexpr int kKinds = 3;  // q, k, v: blockIdx.y
constexpr int kWarps = 4;  // of a block

// One of q, k and v.
template <class T>
struct Kind {
  T* heads;           // [B, count, T, D]
  const float* norm;  // [D] or null
  int count;
  int first;  // its first head among those of a row of qkv
  bool rotated;
};

template <class T>
struct Operands {
  const T* qkv;       // [B*T, heads, D]
  const float* rope;  // [T, D]
  float* scales;      // [B*T, heads], or null without norms
  int64_t rows, sequence;
  int heads, head_dim;
  Kind<T> kinds[kKinds];
};

// How kLanes lanes hold a head: each kSteps times kWidth elements in a row of both of its halves.
template <class T, int kHeadDim>
struct HeadLayout {
  static constexpr int kWidth = gpu::kPack<T>, kLanes = kHeadDim / 2 / kWidth, kSteps = 1;
  __device__ static int HeadDim(int /*head_dim*/) { return kHeadDim; }
};
// Of any head_dim up to kMaxHeadDim, at any alignment.
constexpr int kAnyHeadDim = 0;
template <class T>
struct HeadLayout<T, kAnyHeadDim> {
  static constexpr int kWidth = 1, kLanes = kWarpLanes, kSteps = 8;
  __device__ static int HeadDim(int head_dim) { return head_dim; }
};
constexpr int kMaxHeadDim = 2 * kWarpLanes * HeadLayout<float, kAnyHeadDim>::kSteps;

// A lane's elements of a row [D]: j of the first half and j of the second. Of the rope: cosines and
// sines.
template <class Layout>
struct Pairs {
  float first[Layout::kSteps][Layout::kWidth], second[Layout::kSteps][Layout::kWidth];
};

template <class Layout>
__device__ int Group() {
  return ThisLane() / Layout::kLanes;
}
template <class Layout>
__device__ int ElementOf(int step) {
  const int lane = ThisThread() % Layout::kLanes;
  return (step * Layout::kLanes + lane) * Layout::kWidth;
}

// f(first, second) for references to this lane's pairs of each of `pairs`.
template <class Layout, class F, class... P>
__device__ void ForEachPair(F f, P&... pairs) {
#pragma unroll
  for (int step = 0; step < Layout::kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < Layout::kWidth; ++i) {
      f(pairs.first[step][i]...);
      f(pairs.second[step][i]...);
    }
  }
}

// Zeros where the row has no such element.
template <class Layout, class T>
__device__ Pairs<Layout> LoadPairs(const T* row, int D) {
  Pairs<Layout> pairs = {};
#pragma unroll
  for (int step = 0; step < Layout::kSteps; ++step) {
    const int j = ElementOf<Layout>(step);
    if (j >= D / 2) continue;
    LoadValues(pairs.first[step], row + j);
    LoadValues(pairs.second[step], row + D / 2 + j);
  }
  return pairs;
}
template <class Layout, class T>
__device__ void StorePairs(T* row, int D, const Pairs<Layout>& pairs) {
#pragma unroll
  for (int step = 0; step < Layout::kSteps; ++step) {
    const int j = ElementOf<Layout>(step);
    if (j >= D / 2) continue;
    StoreValues(row + j, pairs.first[step]);
    StoreValues(row + D / 2 + j, pairs.second[step]);
  }
}

enum class Turn { kForward, kBackward };

// (first, second) <- (cos first - sin second, cos second + sin first); backward by the opposite
// angle.
template <class Layout>
__device__ void Rotate(Pairs<Layout>& x, const Pairs<Layout>& rope, Turn turn) {
  const float sign = turn == Turn::kForward ? 1.0F : -1.0F;
#pragma unroll
  for (int step = 0; step < Layout::kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < Layout::kWidth; ++i) {
      const float cosine = rope.first[step][i], sine = sign * rope.second[step][i];
      const float first = x.first[step][i], second = x.second[step][i];
      x.first[step][i] = cosine * first - sine * second;
      x.second[step][i] = cosine * second + sine * first;
    }
  }
}

// Where row n of the tokens has its heads of one kind.
struct Token {
  int64_t position;     // in its sequence
  int64_t column_head;  // the first one in qkv and scales: [B*T, heads]
  int64_t head_row;     // the first one's row in [B, count, T]; the next is a sequence behind

  template <class T>
  __device__ Token(const Operands<T>& operands, const Kind<T>& kind, int64_t n)
      : position(n % operands.sequence),
        column_head(n * operands.heads + kind.first),
        head_row(n / operands.sequence * kind.count * operands.sequence + position) {}
};

template <class T, int kHeadDim>
__global__ void ForwardKernel(Operands<T> operands, float eps) {
  using Layout = HeadLayout<T, kHeadDim>;
  const int64_t n = int64_t{blockIdx.x} * kWarps + ThisWarp();
  if (n >= operands.rows) return;
  const int D = Layout::HeadDim(operands.head_dim);
  const Kind<T> kind = operands.kinds[blockIdx.y];
  const Token token(operands, kind, n);
  Pairs<Layout> rope = {}, weight = {};
  if (kind.rotated) rope = LoadPairs<Layout>(operands.rope + token.position * D, D);
  if (kind.norm != nullptr) weight = LoadPairs<Layout>(kind.norm, D);
  for (int begin = 0; begin < kind.count; begin += kWarpLanes / Layout::kLanes) {
    const int own = begin + Group<Layout>();
    const bool has_head = own < kind.count;  // others only help their warp
    const int64_t head = has_head ? own : 0;
    const int64_t column_head = token.column_head + head;
    const int64_t head_row = token.head_row + head * operands.sequence;
    Pairs<Layout> x = LoadPairs<Layout>(operands.qkv + column_head * D, D);
    if (kind.norm != nullptr) {
      float square = 0;
      ForEachPair<Layout>([&](float v) { square += v * v; }, x);
      const float r =
          gpu::ReciprocalSqrt(gpu::LaneSum<Layout::kLanes>(square) / static_cast<float>(D) + eps);
      if (has_head && ElementOf<Layout>(0) == 0) operands.scales[column_head] = r;
      ForEachPair<Layout>([&](float& v, float w) { v = v * r * w; }, x, weight);
    }
    if (kind.rotated) Rotate(x, rope, Turn::kForward);
    if (has_head) StorePairs(kind.heads + head_row * D, D, x);
  }
}

// partial [D] = the block's sum of `sums` [D], one per head that its warps hold at a time.
template <class Layout>
__device__ void StoreBlockSum(float* partial, int D, Pairs<Layout> sums) {
  const auto add_other_heads = [](float& sum) {
    for (int mask = Layout::kLanes; mask < kWarpLanes; mask *= 2) {
      sum += gpu::ShuffleXor(sum, mask);
    }
  };
  ForEachPair<Layout>(add_other_heads, sums);
  float* const warp_sums = gpu::SharedMemory<float>();  // [kWarps, D]
  if (Group<Layout>() == 0) StorePairs(warp_sums + ThisWarp() * D, D, sums);
  gpu::SyncBlock();
  for (int j = ThisThread(); j < D; j += kWarps * kWarpLanes) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += warp_sums[w * D + j];
    partial[j] = sum;
  }
}

// With y = weight . x r of a head and dy its gradient:
//   dx = r dy . weight - x r (dot(dy . weight, x) r^2 / D),  dweight = sum over heads of dy . x r
// partials [kinds, blocks, D]: of dweight.
template <class T, int kHeadDim>
__global__ void BackwardKernel(Operands<T> operands, T* dqkv, float* partials) {
  using Layout = HeadLayout<T, kHeadDim>;
  const int D = Layout::HeadDim(operands.head_dim);
  const Kind<T> kind = operands.kinds[blockIdx.y];
  Pairs<Layout> rope = {}, weight = {}, dweight = {};
  if (kind.norm != nullptr) weight = LoadPairs<Layout>(kind.norm, D);
  const int64_t first = int64_t{blockIdx.x} * kWarps + ThisWarp();
  for (int64_t n = first; n < operands.rows; n += int64_t{gridDim.x} * kWarps) {
    const Token token(operands, kind, n);
    if (kind.rotated) rope = LoadPairs<Layout>(operands.rope + token.position * D, D);
    for (int begin = 0; begin < kind.count; begin += kWarpLanes / Layout::kLanes) {
      const int own = begin + Group<Layout>();
      const bool has_head = own < kind.count;  // others only help their warp
      const int64_t head = has_head ? own : 0;
      const int64_t column_head = token.column_head + head;
      const int64_t head_row = token.head_row + head * operands.sequence;
      const T* const dy_row = kind.heads + head_row * D;
      // Without a norm x is not needed; no branch stands between the two loads.
      const T* const x_row = kind.norm != nullptr ? operands.qkv + column_head * D : dy_row;
      Pairs<Layout> x = LoadPairs<Layout>(x_row, D), dy = LoadPairs<Layout>(dy_row, D);
      if (kind.rotated) Rotate(dy, rope, Turn::kBackward);
      if (kind.norm != nullptr) {
        const float r = operands.scales[column_head];
        float dot = 0;
        ForEachPair<Layout>([&](float d, float w, float v) { dot += d * w * v; }, dy, weight, x);
        const float along_x = gpu::LaneSum<Layout::kLanes>(dot) * r * r / static_cast<float>(D);
        const auto through_norm = [&](float& d, float& dw, float w, float v) {
          const float x_hat = v * r;
          if (has_head) dw += d * x_hat;
          d = r * d * w - x_hat * along_x;
        };
        ForEachPair<Layout>(through_norm, dy, dweight, weight, x);
      }
      if (has_head) StorePairs(dqkv + column_head * D, D, dy);
    }
  }
  if (kind.norm != nullptr) {
    StoreBlockSum(partials + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * D, D, dweight);
  }
}

// gradient [D] += the partials [blocks, D] of its kind. A block has 32 columns, and one warp for
// each 32nd of the partials.
constexpr int kSlices = 32;

__global__ void __launch_bounds__(kSlices* kWarpLanes)
    AddPartialsKernel(float* gradient, const float* partials, int64_t blocks, int D) {
  float* const slice_sums = gpu::SharedMemory<float>();  // [kSlices, 32]
  const int lane = ThisLane(), slice = ThisWarp();
  const int j = static_cast<int>(blockIdx.x) * kWarpLanes + lane;
  float sum = 0;
  for (int64_t block = slice; j < D && block < blocks; block += kSlices) {
    sum += partials[block * D + j];
  }
  slice_sums[threadIdx.x] = sum;
  gpu::SyncBlock();
  if (slice != 0 || j >= D) return;
  float total = 0;
  for (int s = 0; s < kSlices; ++s) total += slice_sums[s * kWarpLanes + lane];
  gradient[j] += total;
}

const float* FloatsOrNull(Tensor tensor) { return tensor ? tensor.As<float>() : nullptr; }

template <class T>
Operands<T> OperandsOf(const AttentionShape& shape, const QkvTensors& t) {
  Check(shape.head_dim <= kMaxHeadDim, "head_dim %d: at most %d", shape.head_dim, kMaxHeadDim);
  const bool norms = t.q_norm || t.k_norm || t.v_norm;
  const int H = static_cast<int>(shape.heads), K = static_cast<int>(shape.kv_heads);
  return {.qkv = t.qkv.As<T>(),
          .rope = t.rope.As<float>(),
          .scales = norms ? t.scales.As<float>() : nullptr,
          .rows = shape.rows(),
          .sequence = shape.sequence,
          .heads = H + 2 * K,
          .head_dim = static_cast<int>(shape.head_dim),
          .kinds = {{t.q.As<T>(), FloatsOrNull(t.q_norm), H, 0, true},
                    {t.k.As<T>(), FloatsOrNull(t.k_norm), K, H, true},
                    {t.v.As<T>(), FloatsOrNull(t.v_norm), K, H + K, false}}};
}

// f(T, head_dim) as constants, kAnyHeadDim where there is no kernel for it or for its alignment.
// dqkv: absent for forward.
template <class F>
void WithLayout(const AttentionShape& shape, const QkvTensors& t, Tensor dqkv, F f) {
  const bool aligned = gpu::Aligned(t.qkv.data(), t.q.data(), t.k.data(), t.v.data(), t.rope.data(),
                                    t.q_norm.data(), t.k_norm.data(), t.v_norm.data(), dqkv.data());
  WithActivationType(t.qkv.dtype(), [&]<class T>(std::type_identity<T> type) {
    if (aligned && shape.head_dim == 64) return f(type, std::integral_constant<int, 64>());
    if (aligned && shape.head_dim == 128) return f(type, std::integral_constant<int, 128>());
    f(type, std::integral_constant<int, kAnyHeadDim>());
  });
}

}  // namespace

void CudaOps::QkvForward(const AttentionShape& shape, float eps, const QkvTensors& t) const {
  CheckQkvForward(shape, t);
  WithLayout(
      shape, t, Tensor(),
      [&]<class T, int kHeadDim>(std::type_identity<T>, std::integral_constant<int, kHeadDim>) {
        const Operands<T> operands = OperandsOf<T>(shape, t);
        if (operands.rows == 0) return;
        gpu::Launch(
            "QkvForward", ForwardKernel<T, kHeadDim>,
            {.blocks = {static_cast<unsigned>(CeilingOfQuotient(operands.rows, kWarps)), kKinds},
             .threads = kWarps * kWarpLanes},
            stream_, operands, eps);
      });
}

void CudaOps::QkvBackward(const AttentionShape& shape, const QkvTensors& t, Tensor dqkv,
                          Tensor dq_norm, Tensor dk_norm, Tensor dv_norm) const {
  CheckQkvBackward(shape, t, dqkv);
  const int64_t D = shape.head_dim;
  const int64_t blocks = std::min(CeilingOfQuotient(shape.rows(), kWarps), kMostQkvBlocks);
  if (blocks == 0) return;
  float* const partials = workspace_.As<float>(QkvBackwardBytes(blocks, D));
  WithLayout(
      shape, t, dqkv,
      [&]<class T, int kHeadDim>(std::type_identity<T>, std::integral_constant<int, kHeadDim>) {
        gpu::Launch("QkvBackward", BackwardKernel<T, kHeadDim>,
                    {.blocks = {static_cast<unsigned>(blocks), kKinds},
                     .threads = kWarps * kWarpLanes,
                     .shared_bytes = kWarps * D * static_cast<int64_t>(sizeof(float))},
                    stream_, OperandsOf<T>(shape, t), dqkv.As<T>(), partials);
      });
  const Tensor gradients[kKinds] = {dq_norm, dk_norm, dv_norm};
  for (int kind = 0; kind < kKinds; ++kind) {
    if (!gradients[kind]) continue;
    gpu::Launch("QkvNormGradient", AddPartialsKernel,
                {.blocks = static_cast<unsigned>(CeilingOfQuotient(D, kWarpLanes)),
                 .threads = kSlices * kWarpLanes,
                 .shared_bytes = kSlices * kWarpLanes * static_cast<int64_t>(sizeof(float))},
                stream_, gradients[kind].As<float>(), partials + kind * blocks * D, blocks,
                static_cast<int>(D));
  }
}

}  // namespace twinstream
