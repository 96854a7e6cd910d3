#include "core/tensor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace twinstream {

int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kF64:
      return 8;
  }
  Die("unknown dtype");
}

absl::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kI32:
      return "I32";
    case DType::kBF16:
      return "BF16";
    case DType::kF64:
      return "F64";
  }
  Die("unknown dtype");
}

Shape::Shape(absl::Span<const int64_t> extents) : rank_(static_cast<int>(extents.size())) {
  Check(extents.size() <= extents_.size(), "a shape has at most %d dimensions, not %d",
        extents_.size(), extents.size());
  std::copy(extents.begin(), extents.end(), extents_.begin());
}

int64_t Shape::elements() const {
  int64_t product = 1;
  for (int64_t extent : extents()) product *= extent;
  return product;
}

std::string Shape::ToString() const {
  return absl::StrCat("[", absl::StrJoin(extents(), ", "), "]");
}

void Tensor::DieOfDType() const {
  Die(absl::StrCat("a tensor ", shape_.ToString(), " holds ", NameOf(dtype_)));
}

Tensor Tensor::Rows(int64_t begin, int64_t end) const {
  if (shape_.rank() < 1 || begin < 0 || begin > end || end > dim(0)) {
    Die(absl::StrCat("rows [", begin, ", ", end, ") of a tensor ", shape_.ToString()));
  }
  Shape shape = shape_;
  shape[0] = end - begin;
  const int64_t row_bytes = dim(0) == 0 ? 0 : bytes() / dim(0);
  return Tensor(data_ + begin * row_bytes, dtype_, shape);
}

Tensor Tensor::At(int64_t i) const {
  const Tensor row = Rows(i, i + 1);
  return Tensor(row.data_, dtype_, Shape(shape_.extents().subspan(1)));
}

Tensor Tensor::Reshape(const Shape& shape) const {
  if (shape.elements() != elements()) {
    Die(absl::StrCat("a tensor ", shape_.ToString(), " does not reshape to ", shape.ToString()));
  }
  return Tensor(data_, dtype_, shape);
}

}  // namespace twinstream
