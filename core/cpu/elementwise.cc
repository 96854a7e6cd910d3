// Operations on whole tensors, element by element, on the CPU.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/activation_type.h"
#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"
#include "core/op_checks.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

namespace {

template <class T>
void AddAs(Tensor out, Tensor a) {
  T* const to = out.As<T>();
  const T* const from = a.As<T>();
  ParallelRows(out.elements(), GrainFor(1), [=](int64_t begin, int64_t end) {
    VectorLoop(end - begin,
               [to = to + begin, from = from + begin](int64_t i) { to[i] = to[i] + from[i]; });
  });
}

template <class To, class From>
void CastAs(Tensor out, Tensor in) {
  To* const to = out.As<To>();
  const From* const from = in.As<From>();
  ParallelRows(out.elements(), GrainFor(1), [=](int64_t begin, int64_t end) {
    VectorLoop(end - begin, [to = to + begin, from = from + begin](int64_t i) {
      to[i] = static_cast<float>(from[i]);
    });
  });
}

// The sums of blocks of a fixed size, added in order: no bit depends on which thread took a block.
double SumOfSquares(Tensor values) {
  constexpr int64_t kBlock = 16384;  // elements
  const int64_t elements = values.elements();
  const int64_t blocks = (elements + kBlock - 1) / kBlock;
  const float* const data = values.As<float>();
  thread_local std::vector<double> block_sums;  // grows to the largest tensor's blocks, and stays
  block_sums.resize(std::max(block_sums.size(), static_cast<size_t>(blocks)));
  double* const sums = block_sums.data();
  ParallelRows(blocks, 1, [=](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const float* const v = data + block * kBlock;
      sums[block] = VectorSum(std::min(kBlock, elements - block * kBlock),
                              [=](int64_t i) { return static_cast<double>(v[i]) * v[i]; });
    }
  });
  double total = 0;
  for (int64_t block = 0; block < blocks; ++block) total += sums[block];
  return total;
}

}  // namespace

void CpuOps::Add(Tensor out, Tensor a) const {
  CheckAdd(out, a);
  WithActivationType(out.dtype(), [=]<class T>(std::type_identity<T>) { AddAs<T>(out, a); });
}

void CpuOps::Cast(Tensor out, Tensor in) const {
  CheckCast(out, in);
  WithActivationType(out.dtype(), [=]<class To>(std::type_identity<To>) {
    WithActivationType(in.dtype(),
                       [=]<class From>(std::type_identity<From>) { CastAs<To, From>(out, in); });
  });
}

void CpuOps::Scale(Tensor out, float factor) const {
  float* const to = out.As<float>();
  ParallelRows(out.elements(), GrainFor(1), [=](int64_t begin, int64_t end) {
    VectorLoop(end - begin, [to = to + begin, factor](int64_t i) { to[i] *= factor; });
  });
}

void CpuOps::Zero(Tensor out) const {
  std::byte* const to = out.data();
  ParallelRows(out.bytes(), int64_t{64} * 1024, [=](int64_t begin, int64_t end) {
    if (begin < end) std::memset(to + begin, 0, static_cast<size_t>(end - begin));
  });
}

void CpuOps::SumsOfSquares(Tensor sums, absl::Span<const Tensor> tensors) const {
  CheckSumsOfSquares(sums, tensors);
  double* sum = sums.As<double>();
  for (const Tensor& values : tensors) *sum++ = SumOfSquares(values);
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
