#include "parallel/combine.h"

#include <algorithm>
#include <array>

#include "core/check.h"

namespace twinstream {
namespace {

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    return a + b;
  }
};

struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return a > b || a != a ? a : b;  // NaN from either side
  }
};

// T: of the addends; Accumulator: of their sum; Out: of the result.
template <typename T, typename Accumulator, typename Out, typename Operation>
void CombineInto(Out* out, absl::Span<const std::byte* const> addends, int64_t elements) {
  // By way of a block in the first-level cache: `out` may alias an addend, and the inner loop still
  // becomes vector instructions.
  constexpr int64_t kBlock = 512;
  alignas(64) std::array<Accumulator, kBlock> block;
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t n = std::min(kBlock, elements - begin);
    std::copy_n(reinterpret_cast<const T*>(addends[0]) + begin, n, block.data());
    for (const std::byte* addend : addends.subspan(1)) {
      const T* values = reinterpret_cast<const T*>(addend) + begin;
      Accumulator* const sums = block.data();
      for (int64_t i = 0; i < n; ++i) {
        sums[i] = Operation()(sums[i], static_cast<Accumulator>(values[i]));
      }
    }
    std::copy_n(block.data(), n, out + begin);
  }
}

template <typename T, typename Accumulator = T>
void CombineOf(std::byte* out, absl::Span<const std::byte* const> addends, int64_t elements,
               Reduction reduction) {
  T* const values = reinterpret_cast<T*>(out);
  switch (reduction) {
    case Reduction::kSum:
      return CombineInto<T, Accumulator, T, Sum>(values, addends, elements);
    case Reduction::kMax:
      return CombineInto<T, Accumulator, T, Max>(values, addends, elements);
  }
  Die("unknown reduction");
}

}  // namespace

void Combine(std::byte* out, absl::Span<const std::byte* const> addends, int64_t elements,
             DType dtype, Reduction reduction) {
  switch (dtype) {
    case DType::kF32:
      return CombineOf<float>(out, addends, elements, reduction);
    case DType::kF64:
      return CombineOf<double>(out, addends, elements, reduction);
    case DType::kI32:
      return CombineOf<int32_t>(out, addends, elements, reduction);
    case DType::kBF16:
      return CombineOf<BFloat16, float>(out, addends, elements, reduction);
  }
  Die("unknown dtype");
}

void SumBFloat16(float* out, absl::Span<const std::byte* const> addends, int64_t elements) {
  CombineInto<BFloat16, float, float, Sum>(out, addends, elements);
}

}  // namespace twinstream
