// Rows on their way to the experts and back, on the CPU.
#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"

namespace twinstream {

void CpuOps::GatherRows(Tensor out, Tensor in, Tensor choices, Tensor weights) const {
  const int64_t R = out.dim(0), N = in.dim(0), C = in.dim(1);
  Check(out.dim(1) == C && choices.elements() == R && N > 0 && R % N == 0 &&
            (!weights || weights.elements() == R),
        "rows %s of %s by %s with weights %s", out.shape(), in.shape(), choices.shape(),
        weights.shape());
  const int64_t k = R / N;
  const int32_t* const choice = choices.As<int32_t>();
  const float* const weight = weights ? weights.As<float>() : nullptr;
  const float* const in_data = in.As<float>();
  float* const out_data = out.As<float>();
  ParallelRows(R, GrainFor(C), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const from = in_data + choice[r] / k * C;
      float* const to = out_data + r * C;
      const float factor = weight == nullptr ? 1.0F : weight[choice[r]];
      VectorLoop(C, [=](int64_t c) { to[c] = factor * from[c]; });
    }
  });
}

// A token's rows are read where they are, so no two threads write the same row and the order of
// additions is that of the choices.
void CpuOps::CombineRows(Tensor out, Tensor in, Tensor rows, Tensor weights) const {
  const int64_t N = out.dim(0), C = out.dim(1), k = rows.dim(1);
  Check(in.dim(0) == N * k && in.dim(1) == C && rows.dim(0) == N &&
            (!weights || weights.shape() == rows.shape()),
        "sums %s of %s by %s with weights %s", out.shape(), in.shape(), rows.shape(),
        weights.shape());
  const int32_t* const row = rows.As<int32_t>();
  const float* const weight = weights ? weights.As<float>() : nullptr;
  const float* const in_data = in.As<float>();
  float* const out_data = out.As<float>();
  ParallelRows(N, GrainFor(k * C), [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      float* const to = out_data + n * C;
      for (int64_t j = 0; j < k; ++j) {
        const float* const from = in_data + row[n * k + j] * C;
        const float factor = weight == nullptr ? 1.0F : weight[n * k + j];
        if (j == 0) {
          VectorLoop(C, [=](int64_t c) { to[c] = factor * from[c]; });
        } else {
          VectorLoop(C, [=](int64_t c) { to[c] += factor * from[c]; });
        }
      }
    }
  });
}

void CpuOps::RowProducts(Tensor out, Tensor a, Tensor b) const {
  const int64_t R = a.dim(0), C = a.dim(1);
  Check(a.shape() == b.shape() && out.elements() == R, "row products %s of %s and %s", out.shape(),
        a.shape(), b.shape());
  const float* const a_data = a.As<float>();
  const float* const b_data = b.As<float>();
  float* const out_data = out.As<float>();
  ParallelRows(R, GrainFor(C), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const left = a_data + r * C;
      const float* const right = b_data + r * C;
      out_data[r] = VectorSum(C, [=](int64_t c) { return left[c] * right[c]; });
    }
  });
}

}  // namespace twinstream
