// TensorList: several tensors that one grid works on, in place of a launch for each. It travels in
// the kernel's argument, by value. Every tensor has blocks of its own, as many as alone: none of
// its bits depends on the others.
#pragma once

#include <cstdint>

#include "core/cuda/kernel.h"

namespace twinstream::gpu {

// Item: what a block must know of its tensor.
template <class Item>
struct TensorList {
  // Of the 4096 bytes that a kernel's arguments may take, 128 are left to all else.
  static constexpr int kMost = (4096 - 128) / (sizeof(Item) + sizeof(unsigned));

  int count = 0;
  unsigned first_blocks[kMost + 1] = {};  // of every tensor, and the end of the last one's
  Item items[kMost] = {};

  // At most kMost times. blocks: may be 0.
  void Add(const Item& item, int64_t blocks) {
    items[count] = item;
    first_blocks[count + 1] = first_blocks[count] + static_cast<unsigned>(blocks);
    ++count;
  }
  unsigned blocks() const { return first_blocks[count]; }  // of the grid
};

// The place in the list of the tensor that this block works on.
template <class Item>
__device__ int ThisTensor(const TensorList<Item>& list) {
  int tensor = 0, end = list.count;
  while (end - tensor > 1) {
    const int middle = (tensor + end) / 2;
    if (blockIdx.x < list.first_blocks[middle]) {
      end = middle;
    } else {
      tensor = middle;
    }
  }
  return tensor;
}

// This thread's share of what the blocks of a tensor, this one among them, take.
template <class Item>
__device__ Share ShareOfTensor(const TensorList<Item>& list, int tensor) {
  const unsigned first = list.first_blocks[tensor];
  return {int64_t{blockIdx.x - first} * blockDim.x + threadIdx.x,
          int64_t{list.first_blocks[tensor + 1] - first} * blockDim.x};
}

}  // namespace twinstream::gpu
