// SmallProduct of bf16 pairs.
#include <immintrin.h>

#include <bit>

#include "core/cpu/small_product_tiles.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

// Not in an unnamed namespace, where a template would not find it by its argument.
static void AddProduct(Vector& sums, BFloat16Pair a, Vector b) {
  sums =
      _mm512_dpbf16_ps(sums, std::bit_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a.bits))),
                       std::bit_cast<__m512bh>(b));
}

template void SmallProduct(ProductSizes, ProductResult, LeftOperand<BFloat16Pair>,
                           RightOperand<BFloat16Pair>);

}  // namespace twinstream::TWINSTREAM_CPU_ISA
