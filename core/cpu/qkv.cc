// Head norms, rotary embedding and the change to head-major layout, in one pass over qkv.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"

namespace twinstream {
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
struct Operands {
  float* heads[kKinds];       // [B, count, T, D]
  const float* norm[kKinds];  // [D] or null
  const float* rope;          // [T, D]
  float* scales;              // [B*T, H + 2K] or null
};

const float* FloatsOrNull(Tensor tensor) { return tensor ? tensor.As<float>() : nullptr; }

Operands CheckedOperands(const AttentionShape& shape, const QkvTensors& t) {
  const int64_t N = shape.rows(), D = shape.head_dim;
  Check(D % 2 == 0, "rotary embedding needs an even head_dim, not %d", D);
  Check(t.qkv.elements() == N * shape.qkv_columns(), "qkv %s for %d rows of %d columns",
        t.qkv.shape(), N, shape.qkv_columns());
  Check(t.q.elements() == N * shape.heads * D && t.k.elements() == N * shape.kv_heads * D &&
            t.v.elements() == N * shape.kv_heads * D,
        "q %s, k %s, v %s", t.q.shape(), t.k.shape(), t.v.shape());
  Check(t.rope.elements() == shape.sequence * D, "rope %s", t.rope.shape());
  const bool norms = t.q_norm || t.k_norm || t.v_norm;
  Check(!norms || t.scales.elements() == N * (shape.heads + 2 * shape.kv_heads), "scales %s",
        t.scales.shape());
  return {{t.q.As<float>(), t.k.As<float>(), t.v.As<float>()},
          {FloatsOrNull(t.q_norm), FloatsOrNull(t.k_norm), FloatsOrNull(t.v_norm)},
          t.rope.As<float>(),
          norms ? t.scales.As<float>() : nullptr};
}

// Row n = (b, position) of one head in [B, count, T, D].
float* HeadRow(const AttentionShape& shape, float* heads, const Head& head, int64_t n) {
  const int64_t b = n / shape.sequence, position = n % shape.sequence;
  return heads + ((b * head.count + head.index) * shape.sequence + position) * shape.head_dim;
}

// y = weight . x r; returns r = 1 / sqrt(mean(x^2) + eps).
float NormHead(int64_t D, const float* x, const float* weight, float eps, float* y) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < D; ++j) sum += x[j] * x[j];
  const float r = 1 / std::sqrt(sum / static_cast<float>(D) + eps);
  for (int64_t j = 0; j < D; ++j) y[j] = x[j] * r * weight[j];
  return r;
}

// dx from the gradient dy of y; dweight += dy . x r. dx may be x.
void NormHeadBackward(int64_t D, const float* x, const float* weight, float r, const float* dy,
                      float* dx, float* dweight) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t j = 0; j < D; ++j) dot += dy[j] * weight[j] * x[j];
  const float along_x = dot * r * r / static_cast<float>(D);
#pragma omp simd
  for (int64_t j = 0; j < D; ++j) {
    const float x_hat = x[j] * r;
    dweight[j] += dy[j] * x_hat;
    dx[j] = r * dy[j] * weight[j] - x_hat * along_x;
  }
}

enum class Turn { kForward, kBackward };

// (first, second) halves of y <- (cos first - sin second, cos second + sin first) of x's; backward
// turns by the opposite angle. y may be x.
void Rotate(int64_t D, const float* rope, Turn turn, const float* x, float* y) {
  const int64_t half = D / 2;
  const float sign = turn == Turn::kForward ? 1.0F : -1.0F;
#pragma omp simd
  for (int64_t j = 0; j < half; ++j) {
    const float cosine = rope[j], sine = sign * rope[half + j];
    const float first = x[j], second = x[half + j];
    y[j] = cosine * first - sine * second;
    y[half + j] = cosine * second + sine * first;
  }
}

// total += the parts of every range of rows, in order of the ranges: the result depends on the
// number of threads alone. parts: [ranges, kinds, D].
void AddInOrder(const std::vector<float>& parts, int64_t ranges, Kind kind, int64_t D,
                Tensor total) {
  if (!total) return;
  for (int64_t range = 0; range < ranges; ++range) {
    const float* part = parts.data() + (range * kKinds + kind) * D;
    for (int64_t j = 0; j < D; ++j) total.As<float>()[j] += part[j];
  }
}

}  // namespace

void CpuOps::QkvForward(const AttentionShape& shape, float eps, const QkvTensors& t) const {
  const Operands operands = CheckedOperands(shape, t);
  const int64_t heads = shape.heads + 2 * shape.kv_heads, D = shape.head_dim;
  const float* qkv = t.qkv.As<float>();
  ParallelRows(shape.rows(), GrainFor(4 * heads * D), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float* rope = operands.rope + (n % shape.sequence) * D;
      for (int64_t j = 0; j < heads; ++j) {
        const Head head = HeadAt(shape, j);
        const float* x = qkv + (n * heads + j) * D;
        float* y = HeadRow(shape, operands.heads[head.kind], head, n);
        if (const float* norm = operands.norm[head.kind]; norm != nullptr) {
          operands.scales[n * heads + j] = NormHead(D, x, norm, eps, y);
          x = y;
        }
        if (head.kind != kValue) {
          Rotate(D, rope, Turn::kForward, x, y);
        } else if (x != y) {
          std::copy_n(x, D, y);
        }
      }
    }
  });
}

void CpuOps::QkvBackward(const AttentionShape& shape, const QkvTensors& t, Tensor dqkv,
                         Tensor dq_norm, Tensor dk_norm, Tensor dv_norm) const {
  const Operands operands = CheckedOperands(shape, t);
  const int64_t heads = shape.heads + 2 * shape.kv_heads, D = shape.head_dim;
  const float* qkv = t.qkv.As<float>();
  float* dx_rows = dqkv.As<float>();
  const int64_t ranges = RangeCount(shape.rows(), GrainFor(8 * heads * D));
  thread_local std::vector<float> parts;  // [ranges, kinds, D]; grows once
  parts.assign(static_cast<size_t>(ranges * kKinds * D), 0.0F);
  float* part_data = parts.data();
  ParallelRanges(shape.rows(), ranges, [&](int64_t range, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float* rope = operands.rope + (n % shape.sequence) * D;
      for (int64_t j = 0; j < heads; ++j) {
        const Head head = HeadAt(shape, j);
        float* dy = HeadRow(shape, operands.heads[head.kind], head, n);
        float* dx = dx_rows + (n * heads + j) * D;
        if (head.kind != kValue) Rotate(D, rope, Turn::kBackward, dy, dy);
        if (const float* norm = operands.norm[head.kind]; norm != nullptr) {
          NormHeadBackward(D, qkv + (n * heads + j) * D, norm, operands.scales[n * heads + j], dy,
                           dx, part_data + (range * kKinds + head.kind) * D);
        } else {
          std::copy_n(dy, D, dx);
        }
      }
    }
  });
  AddInOrder(parts, ranges, kQuery, D, dq_norm);
  AddInOrder(parts, ranges, kKey, D, dk_norm);
  AddInOrder(parts, ranges, kValue, D, dv_norm);
}

}  // namespace twinstream
