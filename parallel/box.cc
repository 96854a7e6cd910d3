#include "parallel/box.h"

#include <algorithm>

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

Range SplitEvenly(int64_t n, int64_t parts, int64_t i) {
  Check(n >= 0 && 0 <= i && i < parts, "part %d of %d elements over %d parts", i, n, parts);
  const int64_t size = n / parts;
  const int64_t larger = n % parts;  // parts with one element more; they come first
  const int64_t begin = i * size + std::min(i, larger);
  return {begin, begin + size + (i < larger ? 1 : 0)};
}

}  // namespace twinstream
