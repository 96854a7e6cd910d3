// Rows on their way to the experts and back, on the CPU.
#include <algorithm>

#include "core/activation_type.h"
#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"
#include "core/op_checks.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

template <class T>
void Gather(Tensor out, Tensor in, Tensor choices, Tensor weights) {
  const int64_t R = out.dim(0), C = in.dim(1), k = R / in.dim(0);
  const int32_t* const choice = choices.As<int32_t>();
  const float* const weight = weights ? weights.As<float>() : nullptr;
  const T* const in_data = in.As<T>();
  T* const out_data = out.As<T>();
  ParallelRows(R, GrainFor(C), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* const from = in_data + choice[r] / k * C;
      T* const to = out_data + r * C;
      const float factor = weight == nullptr ? 1.0F : weight[choice[r]];
      VectorLoop(C, [=](int64_t c) { to[c] = factor * from[c]; });
    }
  });
}

// A token's rows are read where they are, so no two threads write the same row and the order of
// additions is that of the choices. Sums stay in the first-level cache until they are rounded.
template <class T>
void Combine(Tensor out, Tensor in, Tensor rows, Tensor weights) {
  constexpr int64_t kColumns = 512;  // summed at a time
  const int64_t N = out.dim(0), C = out.dim(1), k = rows.dim(1);
  const int32_t* const row = rows.As<int32_t>();
  const float* const weight = weights ? weights.As<float>() : nullptr;
  const T* const in_data = in.As<T>();
  T* const out_data = out.As<T>();
  ParallelRows(N, GrainFor(k * C), [=](int64_t begin, int64_t end) {
    float memory[kColumns];
    float* const sums = memory;
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t first = 0; first < C; first += kColumns) {
        const int64_t columns = std::min(kColumns, C - first);
        std::fill_n(sums, columns, 0.0F);
        for (int64_t j = 0; j < k; ++j) {
          const T* const from = in_data + row[n * k + j] * C + first;
          const float factor = weight == nullptr ? 1.0F : weight[n * k + j];
          VectorLoop(columns, [=](int64_t c) { sums[c] += factor * from[c]; });
        }
        T* const to = out_data + n * C + first;
        VectorLoop(columns, [=](int64_t c) { to[c] = sums[c]; });
      }
    }
  });
}

template <class T>
void Products(Tensor out, Tensor a, Tensor b) {
  const int64_t R = a.dim(0), C = a.dim(1);
  const T* const a_data = a.As<T>();
  const T* const b_data = b.As<T>();
  float* const out_data = out.As<float>();
  ParallelRows(R, GrainFor(C), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* const left = a_data + r * C;
      const T* const right = b_data + r * C;
      out_data[r] = VectorSum(C, [=](int64_t c) { return float{left[c]} * float{right[c]}; });
    }
  });
}

}  // namespace

void CpuOps::GatherRows(Tensor out, Tensor in, Tensor choices, Tensor weights) const {
  CheckGatherRows(out, in, choices, weights);
  WithActivationType(out.dtype(),
                     [=]<class T>(std::type_identity<T>) { Gather<T>(out, in, choices, weights); });
}

void CpuOps::CombineRows(Tensor out, Tensor in, Tensor rows, Tensor weights) const {
  CheckCombineRows(out, in, rows, weights);
  WithActivationType(out.dtype(),
                     [=]<class T>(std::type_identity<T>) { Combine<T>(out, in, rows, weights); });
}

void CpuOps::RowProducts(Tensor out, Tensor a, Tensor b) const {
  CheckRowProducts(out, a, b);
  WithActivationType(a.dtype(), [=]<class T>(std::type_identity<T>) { Products<T>(out, a, b); });
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
