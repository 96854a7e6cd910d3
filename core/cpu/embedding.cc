// Embedding lookup and its gradient on the CPU.
#include <algorithm>
#include <cstring>

#include "core/activation_type.h"
#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"
#include "core/op_checks.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

// Each thread adds all tokens in ascending n to its own columns, so no two threads meet and the
// order of additions to an element is the same for any number of them.
template <class T>
void Backward(Tensor dtable, Tensor tokens, Tensor dout, int64_t begin) {
  constexpr int64_t kBlock = 16;  // columns: a cache line, which threads must not share
  const int64_t N = dout.dim(0), C = dout.dim(1), table_rows = dtable.dim(0);
  const int32_t* const ids = tokens.As<int32_t>();
  const T* const dout_data = dout.As<T>();
  float* const dtable_data = dtable.As<float>();
  ParallelRows((C + kBlock - 1) / kBlock, GrainFor(N * kBlock), [=](int64_t first, int64_t last) {
    const int64_t column = first * kBlock;
    const int64_t columns = std::min(last * kBlock, C) - column;
    for (int64_t n = 0; n < N; ++n) {
      const int64_t row = ids[n] - begin;
      if (row < 0 || row >= table_rows) continue;
      float* const to = dtable_data + row * C + column;
      const T* const from = dout_data + n * C + column;
      VectorLoop(columns, [=](int64_t j) { to[j] += from[j]; });
    }
  });
}

}  // namespace

void CpuOps::EmbeddingForward(Tensor out, Tensor tokens, Tensor table, int64_t begin) const {
  CheckEmbeddingForward(out, tokens, table);
  const int64_t C = out.dim(1), table_rows = table.dim(0);
  const int64_t row_bytes = C * SizeOf(out.dtype());
  const int32_t* const ids = tokens.As<int32_t>();
  const std::byte* const table_data = table.data();
  std::byte* const out_data = out.data();
  ParallelRows(out.dim(0), GrainFor(C), [=](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) {
      const int64_t row = ids[n] - begin;
      std::byte* const to = out_data + n * row_bytes;
      if (0 <= row && row < table_rows) {
        std::memcpy(to, table_data + row * row_bytes, static_cast<size_t>(row_bytes));
      } else {
        std::memset(to, 0, static_cast<size_t>(row_bytes));
      }
    }
  });
}

void CpuOps::EmbeddingBackward(Tensor dtable, Tensor tokens, Tensor dout, int64_t begin) const {
  CheckEmbeddingBackward(dtable, tokens, dout);
  WithActivationType(dout.dtype(), [=]<class T>(std::type_identity<T>) {
    Backward<T>(dtable, tokens, dout, begin);
  });
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
