// AdamW on a CUDA device: one pass that reads weight, m, v and gradient and writes weight, m and v,
// and the weight's rounded copy where there is one. Its floor: 28 bytes per element, 30 with a
// copy.
#include <cmath>

#include "absl/types/span.h"
#include "core/cuda/kernel.h"
#include "core/cuda/ops.h"
#include "core/cuda/tensor_list.h"
#include "core/op_checks.h"

namespace twinstream {
namespace {

using gpu::LoadValues;
using gpu::StoreValues;

constexpr int kUpdateWidth = 4;  // 16 bytes of float32
constexpr int kThreads = 256;
constexpr int64_t kBlockElements = int64_t{kThreads} * kUpdateWidth * 4;

// Of all tensors.
struct Update {
  float beta1, beta2, gradient_scale, eps;
  float step;  // lr / correction1
  float root;  // 1 / sqrt(correction2)
};

Update UpdateOf(const AdamWOptions& options) {
  const double rate = options.learning_rate;
  return {.beta1 = options.beta1,
          .beta2 = options.beta2,
          .gradient_scale = options.gradient_scale,
          .eps = options.eps,
          .step = static_cast<float>(rate / options.bias_correction1),
          .root = static_cast<float>(1 / std::sqrt(static_cast<double>(options.bias_correction2)))};
}

struct AdamWArrays {
  float *weight, *m, *v;
  const float* gradient;
  BFloat16* rounded;  // or null
  int64_t elements;
  float decay;  // 1 - lr wd
};

AdamWArrays ArraysOf(const AdamWItem& item, double learning_rate) {
  return {.weight = item.weight.As<float>(),
          .m = item.m.As<float>(),
          .v = item.v.As<float>(),
          .gradient = item.gradient.As<float>(),
          .rounded = item.rounded ? item.rounded.As<BFloat16>() : nullptr,
          .elements = item.weight.elements(),
          .decay = static_cast<float>(1 - learning_rate * item.weight_decay)};
}

//   g = gradient_scale gradient,  m <- beta1 m + (1 - beta1) g,  v <- beta2 v + (1 - beta2) g^2
//   w <- w (1 - lr wd) - lr (m / correction1) / (sqrt(v / correction2) + eps)
// One kernel with and without the copy: the weight's bits do not depend on it.
__global__ void AdamWKernel(Update u, gpu::TensorList<AdamWArrays> list) {
  const int tensor = gpu::ThisTensor(list);
  const AdamWArrays a = list.items[tensor];
  const auto update = [=]<int kWidth>(std::integral_constant<int, kWidth>, int64_t i) {
    float weight[kWidth], m[kWidth], v[kWidth], gradient[kWidth];
    LoadValues(weight, a.weight + i);
    LoadValues(m, a.m + i);
    LoadValues(v, a.v + i);
    LoadValues(gradient, a.gradient + i);
    for (int j = 0; j < kWidth; ++j) {
      const float g = u.gradient_scale * gradient[j];
      m[j] = u.beta1 * m[j] + (1 - u.beta1) * g;
      v[j] = u.beta2 * v[j] + (1 - u.beta2) * g * g;
      weight[j] = weight[j] * a.decay - u.step * m[j] / (sqrtf(v[j]) * u.root + u.eps);
    }
    StoreValues(a.weight + i, weight);
    StoreValues(a.m + i, m);
    StoreValues(a.v + i, v);
    if (a.rounded != nullptr) StoreValues(a.rounded + i, weight);
  };
  gpu::ForEachPack<kUpdateWidth>(gpu::ShareOfTensor(list, tensor), a.elements,
                                 gpu::Aligned(a.weight, a.m, a.v, a.gradient, a.rounded), update);
}

}  // namespace

void CudaOps::AdamW(const AdamWOptions& options, absl::Span<const AdamWItem> items) const {
  using List = gpu::TensorList<AdamWArrays>;
  for (size_t begin = 0; begin < items.size(); begin += List::kMost) {
    List list;
    for (const AdamWItem& item : items.subspan(begin, List::kMost)) {
      CheckAdamW(item);
      const AdamWArrays arrays = ArraysOf(item, options.learning_rate);
      list.Add(arrays, gpu::CeilingOfQuotient(arrays.elements, kBlockElements));
    }
    if (list.blocks() == 0) continue;
    gpu::Launch("AdamW", AdamWKernel, {.blocks = list.blocks(), .threads = kThreads}, stream_,
                UpdateOf(options), list);
  }
}

}  // namespace twinstream
