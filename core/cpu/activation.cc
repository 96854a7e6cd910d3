// SwiGLU on the CPU: one pass over memory.
#include "core/activation_type.h"
#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"
#include "core/cpu/vector_rows.h"
#include "core/op_checks.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

constexpr int64_t kWorkPerElement = 16;  // operations of one sigmoid

Vector Sigmoid(Vector v) { return 1 / (1 + Exp(-v)); }

template <class T>
void Forward(Tensor out, Tensor up) {
  const int64_t F = out.dim(1);
  T* const out_data = out.As<T>();
  const T* const up_data = up.As<T>();
  ParallelRows(out.dim(0), GrainFor(kWorkPerElement * F), [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      T* const o = out_data + n * F;
      const T* const value = up_data + n * 2 * F;
      const T* const gate = value + F;
      ForVectors(F, [=](auto at) {
        at.Prefetch(value + 2 * F);
        at.Prefetch(gate + 2 * F);
        const Vector v = at.Load(value), g = at.Load(gate);
        at.Store(g * Sigmoid(g) * v, o);
      });
    }
  });
}

// With s = sigmoid(gate):  dvalue = dout gate s,  dgate = dout value s (1 + gate (1 - s)).
template <class T>
void Backward(Tensor dup, Tensor dout, Tensor up) {
  const int64_t F = dout.dim(1);
  T* const dup_data = dup.As<T>();
  const T* const dout_data = dout.As<T>();
  const T* const up_data = up.As<T>();
  ParallelRows(dout.dim(0), GrainFor(kWorkPerElement * F), [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T* const dout_row = dout_data + n * F;
      const T* const value = up_data + n * 2 * F;
      const T* const gate = value + F;
      T* const dvalue = dup_data + n * 2 * F;
      T* const dgate = dvalue + F;
      ForVectors(F, [=](auto at) {
        at.Prefetch(value + 2 * F);
        at.Prefetch(gate + 2 * F);
        at.Prefetch(dout_row + F);
        const Vector d = at.Load(dout_row), v = at.Load(value), g = at.Load(gate), s = Sigmoid(g);
        at.Store(d * g * s, dvalue);
        at.Store(d * v * s * (1 + g * (1 - s)), dgate);
      });
    }
  });
}

}  // namespace

void CpuOps::SwiGluForward(Tensor out, Tensor up) const {
  CheckSwiGluForward(out, up);
  WithActivationType(out.dtype(), [=]<class T>(std::type_identity<T>) { Forward<T>(out, up); });
}

void CpuOps::SwiGluBackward(Tensor dup, Tensor dout, Tensor up) const {
  CheckSwiGluBackward(dup, dout, up);
  WithActivationType(dout.dtype(),
                     [=]<class T>(std::type_identity<T>) { Backward<T>(dup, dout, up); });
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
