#include "core/cpu/small_product.h"

#include "core/cpu/small_product_tiles.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

template void SmallProduct(ProductSizes, ProductResult, LeftOperand<float>, RightOperand<float>);

}  // namespace twinstream::TWINSTREAM_CPU_ISA
