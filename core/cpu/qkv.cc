// Head norms, rotary embedding and the change to head-major layout, in one pass over qkv.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/activation_type.h"
#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"
#include "core/op_checks.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

enum Kind { kQuery = 0, kKey = 1, kValue = 2, kKinds = 3 };

// Where column head j of a qkv row belongs.
struct Head {
  Kind kind;
  int64_t index;  // among the `count` heads of this kind
  int64_t count;
};

Head HeadAt(const AttentionShape& shape, int64_t j) {
  const int64_t H = shape.heads, K = shape.kv_heads;
  if (j < H) return {kQuery, j, H};
  if (j < H + K) return {kKey, j - H, K};
  return {kValue, j - H - K, K};
}

// What QkvTensors holds, by kind.
template <class T>
struct Operands {
  const T* qkv;               // [B*T, (H + 2K) D]
  T* heads[kKinds];           // [B, count, T, D]
  const float* norm[kKinds];  // [D] or null
  const float* rope;          // [T, D]
  float* scales;              // [B*T, H + 2K] or null
};

const float* FloatsOrNull(Tensor tensor) { return tensor ? tensor.As<float>() : nullptr; }

template <class T>
Operands<T> OperandsOf(const QkvTensors& t) {
  const bool norms = t.q_norm || t.k_norm || t.v_norm;
  return {t.qkv.As<T>(),
          {t.q.As<T>(), t.k.As<T>(), t.v.As<T>()},
          {FloatsOrNull(t.q_norm), FloatsOrNull(t.k_norm), FloatsOrNull(t.v_norm)},
          t.rope.As<float>(),
          norms ? t.scales.As<float>() : nullptr};
}

// f(D), as a constant where it is usual: loops over one head are so short that their set-up counts.
template <class F>
void WithHeadDim(int64_t D, F f) {
  if (D == 64) return f(std::integral_constant<int64_t, 64>());
  if (D == 128) return f(std::integral_constant<int64_t, 128>());
  f(D);
}

// Rows [n, n + count) of the tokens, which follow each other in one sequence.
struct Tokens {
  int64_t n, b, position, count;
};

// Calls f(tokens) for rows [begin, end) in blocks: f takes head by head, whose rows lie together on
// one side, because heads a power of two apart would take each other's place in the caches.
template <class F>
void ForEachBlock(const AttentionShape& shape, int64_t begin, int64_t end, F f) {
  constexpr int64_t kTokens = 128;
  for (int64_t n = begin; n < end;) {
    const int64_t position = n % shape.sequence;
    const int64_t count = std::min({kTokens, shape.sequence - position, end - n});
    f(Tokens{n, n / shape.sequence, position, count});
    n += count;
  }
}

// The first token's row of one head in [B, count, T, D]; those of the others follow.
template <class T>
T* FirstHeadRow(const AttentionShape& shape, T* heads, const Head& head, const Tokens& tokens) {
  const int64_t row = (tokens.b * head.count + head.index) * shape.sequence + tokens.position;
  return heads + row * shape.head_dim;
}

// 1 / sqrt(mean(x^2) + eps) of one head's row.
template <class Extent, class T>
float HeadScale(Extent D, const T* x, float eps) {
  const float sum = VectorSum(D, [x](int64_t j) {
    const float x_j = x[j];
    return x_j * x_j;
  });
  return 1 / std::sqrt(sum / static_cast<float>(D) + eps);
}

// One head's row y = weight . x r, all [D].
template <class T>
struct NormedHead {
  const T* x;
  const float* weight;
  float r;
};

// dx from the gradient dy of y; dweight += dy . x r. dx may be x.
template <class Extent, class T>
void NormHeadBackward(Extent D, const NormedHead<T>& head, const float* dy, T* dx, float* dweight) {
  const T* const x = head.x;
  const float* const weight = head.weight;
  const float r = head.r;
  const float dot = VectorSum(D, [=](int64_t j) { return dy[j] * weight[j] * x[j]; });
  const float along_x = dot * r * r / static_cast<float>(D);
#pragma omp simd
  for (int64_t j = 0; j < D; ++j) {
    const float x_hat = x[j] * r;
    dweight[j] += dy[j] * x_hat;
    dx[j] = r * dy[j] * weight[j] - x_hat * along_x;
  }
}

enum class Turn { kForward, kBackward };

// (first, second) halves of y <- (cos first - sin second, cos second + sin first) of x(j)'s;
// backward turns by the opposite angle. y may be where x reads.
template <class Extent, class X, class Y>
void Rotate(Extent D, const float* rope, Turn turn, X x, Y* y) {
  const int64_t half = D / 2;
  const float sign = turn == Turn::kForward ? 1.0F : -1.0F;
#pragma omp simd
  for (int64_t j = 0; j < half; ++j) {
    const float cosine = rope[j], sine = sign * rope[half + j];
    const float first = x(j), second = x(half + j);
    y[j] = cosine * first - sine * second;
    y[half + j] = cosine * second + sine * first;
  }
}

// y [D] <- x(j), turned unless `kind` is kValue.
template <class Extent, class X, class Y>
void Store(Extent D, Kind kind, const float* rope, Turn turn, X x, Y* y) {
  if (kind != kValue) return Rotate(D, rope, turn, x, y);
  VectorLoop(D, [=](int64_t j) { y[j] = x(j); });
}

// What the rows of one range of backward share, each [D].
struct RangeRows {
  float* dweights[kKinds];  // sums of the norms' gradients
  float* dy;                // gradient of one head before it was turned
};
constexpr int64_t kRangeRows = kKinds + 1;

RangeRows RowsOf(float* memory, int64_t range, int64_t D) {
  float* const rows = memory + range * kRangeRows * D;
  return {{rows, rows + D, rows + 2 * D}, rows + 3 * D};
}

// total += the sums of every range of rows, in order of the ranges: the result depends on the
// number of threads alone.
void AddInOrder(float* memory, int64_t ranges, Kind kind, int64_t D, Tensor total) {
  if (!total) return;
  for (int64_t range = 0; range < ranges; ++range) {
    const float* const sums = RowsOf(memory, range, D).dweights[kind];
    VectorLoop(D, [to = total.As<float>(), sums](int64_t j) { to[j] += sums[j]; });
  }
}

template <class Extent, class T>
void ForwardTokens(Extent D, const AttentionShape& shape, float eps, const Operands<T>& operands,
                   const Tokens& tokens) {
  const int64_t heads = shape.heads + 2 * shape.kv_heads;
  for (int64_t j = 0; j < heads; ++j) {
    const Head head = HeadAt(shape, j);
    const float* const norm = operands.norm[head.kind];
    T* y = FirstHeadRow(shape, operands.heads[head.kind], head, tokens);
    for (int64_t i = 0; i < tokens.count; ++i, y += D) {
      const int64_t row = (tokens.n + i) * heads + j;
      const T* const x = operands.qkv + row * D;
      const float* const rope = operands.rope + (tokens.position + i) * D;
      if (norm != nullptr) {
        const float r = HeadScale(D, x, eps);
        operands.scales[row] = r;
        const auto normed = [=](int64_t d) { return x[d] * r * norm[d]; };
        Store(D, head.kind, rope, Turn::kForward, normed, y);
      } else {
        const auto plain = [=](int64_t d) -> float { return x[d]; };
        Store(D, head.kind, rope, Turn::kForward, plain, y);
      }
    }
  }
}

template <class T>
void Forward(const AttentionShape& shape, float eps, const QkvTensors& t) {
  const Operands<T> operands = OperandsOf<T>(t);
  ParallelRows(shape.rows(), GrainFor(4 * shape.qkv_columns()), [&](int64_t begin, int64_t end) {
    WithHeadDim(shape.head_dim, [&](auto D) {
      ForEachBlock(shape, begin, end,
                   [&](const Tokens& tokens) { ForwardTokens(D, shape, eps, operands, tokens); });
    });
  });
}

// dx [B*T, (H + 2K) D] of all heads from the gradients dy of what forward stored. It may be qkv.
template <class Extent, class T>
void BackwardTokens(Extent D, const AttentionShape& shape, const Operands<T>& operands,
                    const Tokens& tokens, const RangeRows& rows, T* dx) {
  const int64_t heads = shape.heads + 2 * shape.kv_heads;
  for (int64_t j = 0; j < heads; ++j) {
    const Head head = HeadAt(shape, j);
    const float* const norm = operands.norm[head.kind];
    const T* dy = FirstHeadRow(shape, operands.heads[head.kind], head, tokens);
    for (int64_t i = 0; i < tokens.count; ++i, dy += D) {
      const int64_t row = (tokens.n + i) * heads + j;
      const float* const rope = operands.rope + (tokens.position + i) * D;
      const auto gradient = [=](int64_t d) -> float { return dy[d]; };
      if (norm != nullptr) {
        Store(D, head.kind, rope, Turn::kBackward, gradient, rows.dy);
        NormHeadBackward(D, NormedHead<T>{operands.qkv + row * D, norm, operands.scales[row]},
                         rows.dy, dx + row * D, rows.dweights[head.kind]);
      } else {
        Store(D, head.kind, rope, Turn::kBackward, gradient, dx + row * D);
      }
    }
  }
}

template <class T>
void Backward(const AttentionShape& shape, const QkvTensors& t, Tensor dqkv, Tensor dq_norm,
              Tensor dk_norm, Tensor dv_norm) {
  const Operands<T> operands = OperandsOf<T>(t);
  const int64_t columns = shape.qkv_columns();
  const int64_t ranges = RangeCount(shape.rows(), GrainFor(8 * columns));
  float* const memory = ThreadScratch<Operands<T>>(ranges * kRangeRows * shape.head_dim);
  std::fill_n(memory, ranges * kRangeRows * shape.head_dim, 0.0F);
  ParallelRanges(shape.rows(), ranges, [&](int64_t range, int64_t begin, int64_t end) {
    const RangeRows rows = RowsOf(memory, range, shape.head_dim);
    WithHeadDim(shape.head_dim, [&](auto D) {
      ForEachBlock(shape, begin, end, [&](const Tokens& tokens) {
        BackwardTokens(D, shape, operands, tokens, rows, dqkv.As<T>());
      });
    });
  });
  AddInOrder(memory, ranges, kQuery, shape.head_dim, dq_norm);
  AddInOrder(memory, ranges, kKey, shape.head_dim, dk_norm);
  AddInOrder(memory, ranges, kValue, shape.head_dim, dv_norm);
}

}  // namespace

void CpuOps::QkvForward(const AttentionShape& shape, float eps, const QkvTensors& t) const {
  CheckQkvForward(shape, t);
  WithActivationType(t.qkv.dtype(),
                     [&]<class T>(std::type_identity<T>) { Forward<T>(shape, eps, t); });
}

void CpuOps::QkvBackward(const AttentionShape& shape, const QkvTensors& t, Tensor dqkv,
                         Tensor dq_norm, Tensor dk_norm, Tensor dv_norm) const {
  CheckQkvBackward(shape, t, dqkv);
  WithActivationType(t.qkv.dtype(), [&]<class T>(std::type_identity<T>) {
    Backward<T>(shape, t, dqkv, dq_norm, dk_norm, dv_norm);
  });
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
