#include "tests/benchmarks/ops/operands.h"

#include <algorithm>

#include "tests/testing/vectors.h"

namespace twinstream::benchmarks {
namespace {

constexpr int64_t kBytes = int64_t{2} << 30;  // of which only what is written takes memory
constexpr int64_t kValues = 1 << 20;
constexpr uint64_t kSeed = 1;

}  // namespace

Operands::Operands(Device& device)
    : device_(device), memory_(device, kBytes), values_(testing::RandomFloats(kValues, kSeed)) {}

Tensor Operands::Zeros(DType dtype, const Shape& shape) {
  const Tensor tensor = memory_.Allocate(dtype, shape);
  ops().Zero(tensor);
  return tensor;
}

Tensor Operands::Random(DType dtype, const Shape& shape) {
  const Tensor tensor = memory_.Allocate(dtype, shape);
  const Tensor flat = tensor.Reshape({tensor.elements()});
  for (int64_t begin = 0; begin < flat.elements(); begin += kValues) {
    const int64_t end = std::min(begin + kValues, flat.elements());
    CopyInRounded(device_, flat.Rows(begin, end),
                  absl::MakeConstSpan(values_.data(), static_cast<size_t>(end - begin)));
  }
  return tensor;
}

Tensor Operands::Integers(const Shape& shape, int64_t step, int64_t end) {
  const Tensor tensor = memory_.Allocate(DType::kI32, shape);
  std::vector<int32_t> values(static_cast<size_t>(tensor.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int32_t>(static_cast<int64_t>(i) * step % end);
  }
  device_.CopyIn(tensor, values.data());
  device_.Synchronize();  // `values` goes away
  return tensor;
}

}  // namespace twinstream::benchmarks
