#include "parallel/box.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace twinstream {

Box Box::Whole(const Shape& global) {
  Box box{global, global};
  for (int d = 0; d < global.rank(); ++d) box.begin[d] = 0;
  return box;
}

Box Box::Range(const Shape& global, int dimension, int64_t from, int64_t to) {
  Check(0 <= dimension && dimension < global.rank() && 0 <= from && from <= to &&
            to <= global[dimension],
        "range [%d, %d) of dimension %d of a tensor %s", from, to, dimension, global.ToString());
  Box box = Whole(global);
  box.begin[dimension] = from;
  box.extent[dimension] = to - from;
  return box;
}

std::string Box::ToString() const {
  std::string text = "[";
  for (int d = 0; d < begin.rank(); ++d) {
    absl::StrAppend(&text, d > 0 ? ", " : "", begin[d], ":", begin[d] + extent[d]);
  }
  return text + "]";
}

Box Intersect(const Box& a, const Box& b) {
  Check(a.begin.rank() == b.begin.rank(), "boxes %s and %s differ in rank", a.ToString(),
        b.ToString());
  Box common = a;
  for (int d = 0; d < a.begin.rank(); ++d) {
    common.begin[d] = std::max(a.begin[d], b.begin[d]);
    const int64_t end = std::min(a.begin[d] + a.extent[d], b.begin[d] + b.extent[d]);
    common.extent[d] = std::max<int64_t>(0, end - common.begin[d]);
  }
  return common;
}

namespace {

// Elements from one index of dimension d to the next.
int64_t Stride(const Shape& extent, int d) {
  int64_t elements = 1;
  for (int e = d + 1; e < extent.rank(); ++e) elements *= extent[e];
  return elements;
}

// Memory of a box: its extents, and the first element of the part that is copied.
template <class Byte>
struct Part {
  const Shape& extent;
  Byte* data;
};

// CopyBox from dimension d on.
void CopyFrom(int d, const Shape& common, Part<const std::byte> from, Part<std::byte> to,
              int64_t element_bytes) {
  const int64_t run = d < common.rank() ? Stride(common, d) * common[d] : 1;
  const int64_t from_stride = Stride(from.extent, d);
  const int64_t to_stride = Stride(to.extent, d);
  const bool contiguous =
      d == common.rank() || (Stride(common, d) == from_stride && Stride(common, d) == to_stride);
  if (contiguous) {
    std::memcpy(to.data, from.data, static_cast<size_t>(run * element_bytes));
    return;
  }
  for (int64_t i = 0; i < common[d]; ++i) {
    CopyFrom(d + 1, common, {from.extent, from.data + i * from_stride * element_bytes},
             {to.extent, to.data + i * to_stride * element_bytes}, element_bytes);
  }
}

// Elements from the begin of memory that holds `box` to the first element of `part`.
int64_t OffsetIn(const Box& box, const Box& part) {
  int64_t offset = 0;
  for (int d = 0; d < box.begin.rank(); ++d) {
    const int64_t index = part.begin[d] - box.begin[d];
    Check(index >= 0 && index + part.extent[d] <= box.extent[d], "%s is not inside %s",
          part.ToString(), box.ToString());
    offset = offset * box.extent[d] + index;
  }
  return offset;
}

}  // namespace

void CopyBox(const Box& common, const Box& from_box, const std::byte* from, const Box& to_box,
             std::byte* to, int64_t element_bytes) {
  if (common.elements() == 0) return;
  CopyFrom(0, common.extent, {from_box.extent, from + OffsetIn(from_box, common) * element_bytes},
           {to_box.extent, to + OffsetIn(to_box, common) * element_bytes}, element_bytes);
}

Range SplitEvenly(int64_t n, int64_t parts, int64_t i) {
  Check(n >= 0 && 0 <= i && i < parts, "part %d of %d elements over %d parts", i, n, parts);
  const int64_t size = n / parts;
  const int64_t larger = n % parts;  // parts with one element more; they come first
  const int64_t begin = i * size + std::min(i, larger);
  return {begin, begin + size + (i < larger ? 1 : 0)};
}

}  // namespace twinstream
