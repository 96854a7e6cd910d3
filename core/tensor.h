// Tensor: a contiguous, typed view of memory that somebody else owns. Cheap to copy; no strides.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/bfloat16.h"
#include "core/check.h"

namespace twinstream {

enum class DType { kF32, kBF16, kF64, kI32 };

int64_t SizeOf(DType dtype);            // bytes per element
absl::string_view NameOf(DType dtype);  // safetensors' name: F32, BF16, F64, I32

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType kValue = DType::kF32;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType kValue = DType::kBF16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType kValue = DType::kF64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType kValue = DType::kI32;
};

// Up to four extents. The empty shape is a scalar: one element.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents)  // NOLINT(google-explicit-constructor)
      : Shape(absl::MakeConstSpan(extents.begin(), extents.size())) {}
  explicit Shape(absl::Span<const int64_t> extents);

  int rank() const { return rank_; }
  int64_t operator[](int dimension) const { return extents_[static_cast<size_t>(dimension)]; }
  int64_t& operator[](int dimension) { return extents_[static_cast<size_t>(dimension)]; }
  absl::Span<const int64_t> extents() const {
    return {extents_.data(), static_cast<size_t>(rank_)};
  }
  int64_t elements() const;
  std::string ToString() const;  // "[2, 16, 32]"
  // Lets messages take a shape as "%s" and make its text only when they are printed.
  friend absl::FormatConvertResult<absl::FormatConversionCharSet::kString> AbslFormatConvert(
      const Shape& shape, const absl::FormatConversionSpec& /*spec*/, absl::FormatSink* sink) {
    sink->Append(shape.ToString());
    return {true};
  }
  friend bool operator==(const Shape& a, const Shape& b) { return a.extents() == b.extents(); }

 private:
  std::array<int64_t, 4> extents_ = {};
  int rank_ = 0;
};

class Tensor {
 public:
  Tensor() = default;  // no tensor: an optional argument that is absent
  Tensor(std::byte* data, DType dtype, const Shape& shape)
      : data_(data), dtype_(dtype), shape_(shape) {}

  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int dimension) const { return shape_[dimension]; }
  int64_t elements() const { return shape_.elements(); }
  int64_t bytes() const { return elements() * SizeOf(dtype_); }

  template <typename T>
  T* As() const {
    if (dtype_ != DTypeOf<T>::kValue) DieOfDType();  // no message is built where all is well
    return reinterpret_cast<T*>(data_);
  }

  // Rows [begin, end) along dimension 0.
  Tensor Rows(int64_t begin, int64_t end) const;
  // Index `i` along dimension 0; that dimension disappears.
  Tensor At(int64_t i) const;
  // The same elements under another shape.
  Tensor Reshape(const Shape& shape) const;

 private:
  [[noreturn]] void DieOfDType() const;

  std::byte* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Shape shape_;
};

// What a tensor will be, before it has memory.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  int64_t bytes() const { return shape.elements() * SizeOf(dtype); }
};

}  // namespace twinstream
