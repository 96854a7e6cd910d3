// Box: a part of a named global tensor. Tensor-parallel slice, ZeRO-1 slice and checkpoint piece
// are all boxes, so loading on another layout is intersection.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace twinstream {

struct Box {
  Shape begin;   // first element, per dimension of the global tensor
  Shape extent;  // elements per dimension; may be 0

  static Box Whole(const Shape& global);
  // Elements [from, to) of `dimension`, all of the others.
  static Box Range(const Shape& global, int dimension, int64_t from, int64_t to);
  int64_t elements() const { return extent.elements(); }
  std::string ToString() const;  // "[0:16, 32:64]"
  friend bool operator==(const Box& a, const Box& b) {
    return a.begin == b.begin && a.extent == b.extent;
  }
};

// The common part; extent 0 in some dimension when there is none.
Box Intersect(const Box& a, const Box& b);

// Copies the elements of `common`, which lies inside both boxes, from memory that holds `from_box`
// (row-major, host) to memory that holds `to_box`.
void CopyBox(const Box& common, const Box& from_box, const std::byte* from, const Box& to_box,
             std::byte* to, int64_t element_bytes);

// Part `i` of n elements over `parts`, as even as it goes: sizes differ by at most one, larger ones
// first.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
Range SplitEvenly(int64_t n, int64_t parts, int64_t i);

// A contiguous local tensor that holds one box of a named global tensor. The unit of checkpoints.
struct Piece {
  std::string name;
  Shape global;
  Box box;
  Tensor data;  // box.elements() elements, row-major over the box
};

}  // namespace twinstream
