// SwiGLU on the CPU: one pass over memory.
#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"

namespace twinstream {
namespace {

constexpr int64_t kWorkPerElement = 16;  // operations of one sigmoid

float Sigmoid(float v) { return 1 / (1 + Exp(-v)); }

// Checks that up is [N, 2F] for the [N, F] of `half`; gives F.
int64_t CheckedWidth(Tensor half, Tensor up) {
  const int64_t F = half.dim(1);
  Check(half.shape().rank() == 2 && up.shape() == Shape({half.dim(0), 2 * F}),
        "SwiGLU of %s into %s", up.shape(), half.shape());
  return F;
}

}  // namespace

void CpuOps::SwiGluForward(Tensor out, Tensor up) const {
  const int64_t F = CheckedWidth(out, up);
  float* const out_data = out.As<float>();
  const float* const up_data = up.As<float>();
  ParallelRows(out.dim(0), GrainFor(kWorkPerElement * F), [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      float* const o = out_data + n * F;
      const float* const value = up_data + n * 2 * F;
      const float* const gate = value + F;
      VectorLoop(F, [=](int64_t j) { o[j] = gate[j] * Sigmoid(gate[j]) * value[j]; });
    }
  });
}

// With s = sigmoid(gate):  dvalue = dout gate s,  dgate = dout value s (1 + gate (1 - s)).
void CpuOps::SwiGluBackward(Tensor dup, Tensor dout, Tensor up) const {
  const int64_t F = CheckedWidth(dout, up);
  Check(dup.shape() == up.shape(), "gradient %s of %s", dup.shape(), up.shape());
  float* const dup_data = dup.As<float>();
  const float* const dout_data = dout.As<float>();
  const float* const up_data = up.As<float>();
  ParallelRows(dout.dim(0), GrainFor(kWorkPerElement * F), [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float* const d = dout_data + n * F;
      const float* const value = up_data + n * 2 * F;
      const float* const gate = value + F;
      float* const dvalue = dup_data + n * 2 * F;
      float* const dgate = dvalue + F;
      VectorLoop(F, [=](int64_t j) {
        const float v = value[j], g = gate[j], s = Sigmoid(g);
        dvalue[j] = d[j] * g * s;
        dgate[j] = d[j] * v * s * (1 + g * (1 - s));
      });
    }
  });
}

}  // namespace twinstream
