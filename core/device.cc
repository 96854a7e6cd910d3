#include "core/device.h"

#include <utility>

namespace twinstream {
namespace {

constexpr int64_t kAlignment = 64;  // bytes: a cache line and an AVX-512 register

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Storage::Storage(Device& device, int64_t bytes)
    : device_(&device), data_(bytes == 0 ? nullptr : device.Allocate(bytes)), bytes_(bytes) {}

Storage::Storage(Storage&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Storage& Storage::operator=(Storage&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Storage::~Storage() {
  if (data_ != nullptr) device_->Free(data_, bytes_);
}

void CopyInRounded(Device& device, Tensor to, absl::Span<const float> values) {
  Check(static_cast<int64_t>(values.size()) == to.elements(), "%d values for a tensor %s",
        values.size(), to.shape());
  if (to.dtype() == DType::kF32) return device.CopyIn(to, values.data());
  Check(to.dtype() == DType::kBF16, "values of %s are neither float32 nor bf16",
        NameOf(to.dtype()));
  std::vector<BFloat16> rounded(values.size());
  for (size_t i = 0; i < values.size(); ++i) rounded[i] = values[i];
  device.CopyIn(to, rounded.data());
}

int64_t BytesFor(absl::Span<const TensorSpec> specs) {
  int64_t bytes = 0;
  for (const TensorSpec& spec : specs) bytes += Aligned(spec.bytes());
  return bytes;
}

std::vector<Tensor> TensorsIn(std::byte* data, absl::Span<const TensorSpec> specs) {
  std::vector<Tensor> tensors;
  tensors.reserve(specs.size());
  for (const TensorSpec& spec : specs) {
    tensors.emplace_back(data, spec.dtype, spec.shape);
    data += Aligned(spec.bytes());
  }
  return tensors;
}

Tensor Scratch::Allocate(DType dtype, const Shape& shape) {
  const Tensor tensor(storage_.data() + used_, dtype, shape);
  used_ += Aligned(tensor.bytes());
  Check(used_ <= storage_.bytes(), "scratch memory is full: %d of %d bytes needed for %s", used_,
        storage_.bytes(), shape);
  return tensor;
}

}  // namespace twinstream
