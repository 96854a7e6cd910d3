// AdamW on the CPU: one pass that reads weight, m, v and gradient and writes weight, m and v, and
// the weight's rounded copy where there is one.
#include <cmath>

#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"
#include "core/op_checks.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

// What one update does with the weight that it has computed.
struct NoCopy {
  void operator()(int64_t /*i*/, float /*weight*/) const {}
};
struct RoundedCopy {
  BFloat16* to;
  void operator()(int64_t i, float weight) const { to[i] = weight; }
};

//   g = gradient_scale gradient,  m <- beta1 m + (1 - beta1) g,  v <- beta2 v + (1 - beta2) g^2
//   w <- w (1 - lr wd) - lr (m / correction1) / (sqrt(v / correction2) + eps)
template <class Copy>
void Update(const AdamWOptions& options, const AdamWItem& item, Copy copy) {
  const double rate = options.learning_rate;
  const float decay = static_cast<float>(1 - rate * item.weight_decay);
  const float step = static_cast<float>(rate / options.bias_correction1);
  const float root =
      static_cast<float>(1 / std::sqrt(static_cast<double>(options.bias_correction2)));
  const float beta1 = options.beta1, beta2 = options.beta2;
  const float scale = options.gradient_scale, eps = options.eps;
  float *const weights = item.weight.As<float>(), *const first = item.m.As<float>(),
               *const second = item.v.As<float>();
  const float* const gradients = item.gradient.As<float>();
  ParallelRows(item.weight.elements(), GrainFor(4), [=](int64_t begin, int64_t end) {
    VectorLoop(end - begin, [=](int64_t k) {
      const int64_t i = begin + k;
      const float g = scale * gradients[i];
      const float m_new = beta1 * first[i] + (1 - beta1) * g;
      const float v_new = beta2 * second[i] + (1 - beta2) * g * g;
      first[i] = m_new;
      second[i] = v_new;
      const float w = weights[i] * decay - step * m_new / (std::sqrt(v_new) * root + eps);
      weights[i] = w;
      copy(i, w);
    });
  });
}

}  // namespace

void CpuOps::AdamW(const AdamWOptions& options, absl::Span<const AdamWItem> items) const {
  for (const AdamWItem& item : items) {
    CheckAdamW(item);
    if (item.rounded) {
      Update(options, item, RoundedCopy{item.rounded.As<BFloat16>()});
    } else {
      Update(options, item, NoCopy());
    }
  }
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
