// SwiGLU on a CUDA device: one pass over memory, one block per row. Floors, per element of `out`:
// forward 3 SizeOf(T) bytes, backward 5 SizeOf(T).
#include "core/activation_type.h"
#include "core/cuda/kernel.h"
#include "core/cuda/ops.h"
#include "core/op_checks.h"

namespace twinstream {
namespace {

using gpu::ForEachPack;
using gpu::LoadValues;
using gpu::StoreValues;

__device__ float Sigmoid(float v) { return 1 / (1 + gpu::Exp(-v)); }

template <class T>
__global__ void ForwardKernel(T* out, const T* up, int64_t F) {
  T* const o = out + blockIdx.x * F;
  const T* const value = up + blockIdx.x * 2 * F;
  const T* const gate = value + F;
  ForEachPack<gpu::kPack<T>>(gpu::ShareOfBlock(), F, gpu::Aligned(o, value, gate),
                             [=]<int kWidth>(std::integral_constant<int, kWidth>, int64_t j) {
                               float v[kWidth], g[kWidth];
                               LoadValues(v, value + j);
                               LoadValues(g, gate + j);
                               for (int i = 0; i < kWidth; ++i) v[i] *= g[i] * Sigmoid(g[i]);
                               StoreValues(o + j, v);
                             });
}

// With s = sigmoid(gate):  dvalue = dout gate s,  dgate = dout value s (1 + gate (1 - s)).
template <class T>
__global__ void BackwardKernel(T* dup, const T* dout, const T* up, int64_t F) {
  const T* const dout_row = dout + blockIdx.x * F;
  const T* const value = up + blockIdx.x * 2 * F;
  const T* const gate = value + F;
  T* const dvalue = dup + blockIdx.x * 2 * F;
  T* const dgate = dvalue + F;
  ForEachPack<gpu::kPack<T>>(gpu::ShareOfBlock(), F,
                             gpu::Aligned(dout_row, value, gate, dvalue, dgate),
                             [=]<int kWidth>(std::integral_constant<int, kWidth>, int64_t j) {
                               float d[kWidth], v[kWidth], g[kWidth];
                               LoadValues(d, dout_row + j);
                               LoadValues(v, value + j);
                               LoadValues(g, gate + j);
                               for (int i = 0; i < kWidth; ++i) {
                                 const float s = Sigmoid(g[i]), d_value = d[i] * g[i] * s;
                                 g[i] = d[i] * v[i] * s * (1 + g[i] * (1 - s));
                                 v[i] = d_value;
                               }
                               StoreValues(dvalue + j, v);
                               StoreValues(dgate + j, g);
                             });
}

// A block for each row of the [N, F] of `half`.
gpu::LaunchShape ShapeOver(Tensor half) {
  return {.blocks = static_cast<unsigned>(half.dim(0)),
          .threads = half.dim(1) > 1024 ? 256U : 128U};
}

}  // namespace

void CudaOps::SwiGluForward(Tensor out, Tensor up) const {
  CheckSwiGluForward(out, up);
  if (out.elements() == 0) return;
  WithActivationType(out.dtype(), [&]<class T>(std::type_identity<T>) {
    gpu::Launch("SwiGluForward", ForwardKernel<T>, ShapeOver(out), stream_, out.As<T>(), up.As<T>(),
                out.dim(1));
  });
}

void CudaOps::SwiGluBackward(Tensor dup, Tensor dout, Tensor up) const {
  CheckSwiGluBackward(dup, dout, up);
  if (dout.elements() == 0) return;
  WithActivationType(dout.dtype(), [&]<class T>(std::type_identity<T>) {
    gpu::Launch("SwiGluBackward", BackwardKernel<T>, ShapeOver(dout), stream_, dup.As<T>(),
                dout.As<T>(), up.As<T>(), dout.dim(1));
  });
}

}  // namespace twinstream
