// What the forward and the backward of a residual site share on a CUDA device. A block works on one
// row at a time, and a thread on the same columns of every row: packs of 16 bytes that lie
// blockDim.x packs apart.
// kColumns, a parameter of all that follows: how many columns of a row a thread holds in registers.
// Then each row is read once and written once; C is whole packs, and pointers are aligned to 16
// bytes. 0: any C, any pointers; packs are read, element by element, whenever they are wanted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "core/cuda/kernel.h"
#include "core/tensor.h"

namespace twinstream::gpu {

// f(n) for each of this block's share of N rows.
template <class F>
__device__ void ForEachRow(int N, F f) {
  for (int n = static_cast<int>(blockIdx.x); n < N; n += static_cast<int>(gridDim.x)) f(n);
}

// Number i of this thread's packs of a row: columns from `begin` on.
struct PackPlace {
  int i, begin;
};

// f(place) for each pack of this thread in a row of C columns.
template <class T, int kColumns, class F>
__device__ void ForEachPackOfRow(int C, F f) {
  const int first = ThisThread() * kPack<T>;
  const int stride = static_cast<int>(blockDim.x) * kPack<T>;
  if constexpr (kColumns > 0) {
#pragma unroll
    for (int i = 0; i < kColumns / kPack<T>; ++i) {
      const PackPlace at = {i, first + i * stride};
      if (at.begin < C) f(at);
    }
  } else {
    for (PackPlace at = {0, first}; at.begin < C; ++at.i, at.begin += stride) f(at);
  }
}

// Float32 values beside a pack of T: 4 at a time, `stride` apart, each aligned to 16 bytes.
template <class T>
__device__ Pack<T> LoadFloats(const float* from, int stride = 4) {
  Pack<T> pack;
  for (int j = 0; j < kPack<T>; j += 4) {
    const Pack<float> four = LoadPack(from + j / 4 * stride);
    for (int k = 0; k < 4; ++k) pack.values[j + k] = four.values[k];
  }
  return pack;
}
template <class T>
__device__ void StoreFloats(float* to, const Pack<T>& pack, int stride = 4) {
  for (int j = 0; j < kPack<T>; j += 4) {
    const float* v = pack.values + j;
    StorePack(to + j / 4 * stride, Pack<float>{{v[0], v[1], v[2], v[3]}});
  }
}

// Element by element, zeros behind the row's end.
template <class T, class Element>
__device__ Pack<T> LoadElements(const Element* row, int C, PackPlace at) {
  Pack<T> pack = {};
  for (int j = 0; j < kPack<T> && at.begin + j < C; ++j) pack.values[j] = row[at.begin + j];
  return pack;
}

// A pack of a weight [C] of float32, or of ones where there is none.
template <class T, int kColumns>
__device__ Pack<T> LoadWeight(const float* weight, int C, PackPlace at) {
  if (weight == nullptr) {
    Pack<T> ones;
    for (float& value : ones.values) value = 1;
    return ones;
  }
  if constexpr (kColumns > 0) {
    return LoadFloats<T>(weight + at.begin);
  } else {
    return LoadElements<T>(weight, C, at);
  }
}

template <int kColumns, class T>
__device__ void StoreColumns(T* row, int C, PackPlace at, const Pack<T>& pack) {
  if constexpr (kColumns > 0) {
    StorePack(row + at.begin, pack);
  } else {
    for (int j = 0; j < kPack<T> && at.begin + j < C; ++j) row[at.begin + j] = pack.values[j];
  }
}

// This thread's columns of a row of activations.
template <class T, int kColumns>
class Row {
 public:
  Row() = default;
  // row: [C], or null: zeros.
  __device__ Row(const T* row, int C) {
    if (row == nullptr) return;
    ForEachPackOfRow<T, kColumns>(C, [&](PackPlace at) {
      packs_[at.i] = LoadStreaming(reinterpret_cast<const uint4*>(row + at.begin));
    });
  }
  __device__ Pack<T> operator[](PackPlace at) const {
    return Unpacked(std::type_identity<T>(), packs_[at.i]);
  }
  // Rounds a pack to T and stores it to `to`, from where on the row holds it.
  __device__ void Store(T* to, int /*C*/, PackPlace at, const Pack<T>& pack) {
    packs_[at.i] = Packed(pack);
    StoreStreaming(reinterpret_cast<uint4*>(to + at.begin), packs_[at.i]);
  }

 private:
  uint4 packs_[kColumns / kPack<T>] = {};
};

template <class T>
class Row<T, 0> {
 public:
  Row() = default;
  __device__ Row(const T* row, int C) : row_(row), C_(C) {}
  __device__ Pack<T> operator[](PackPlace at) const {
    return row_ == nullptr ? Pack<T>() : LoadElements<T>(row_, C_, at);
  }
  __device__ void Store(T* to, int C, PackPlace at, const Pack<T>& pack) {
    row_ = to;
    C_ = C;
    StoreColumns<0>(to, C, at, pack);
  }

 private:
  const T* row_ = nullptr;
  int C_ = 0;
};

// The same of a row of float32 that only its thread ever sees.
template <class T, int kColumns>
class TemporaryRow {
 public:
  explicit __device__ TemporaryRow(float* /*memory*/) {}
  __device__ const Pack<T>& operator[](PackPlace at) const { return packs_[at.i]; }
  __device__ void Set(PackPlace at, const Pack<T>& pack) { packs_[at.i] = pack; }

 private:
  Pack<T> packs_[kColumns / kPack<T>] = {};
};

template <class T>
class TemporaryRow<T, 0> {
 public:
  // memory: whole packs of all threads of the block, aligned to 16 bytes.
  explicit __device__ TemporaryRow(float* memory) : memory_(memory) {}
  __device__ Pack<T> operator[](PackPlace at) const { return LoadFloats<T>(memory_ + at.begin); }
  __device__ void Set(PackPlace at, const Pack<T>& pack) { StoreFloats(memory_ + at.begin, pack); }

 private:
  float* memory_;
};

// Sums over the threads of a block of whole warps, at the cost of one barrier: two places for them
// take turns, so that no thread overwrites what another still reads.
class BlockSums {
 public:
  static constexpr int kFloats = 2 * 2 * kWarpLanes;

  explicit __device__ BlockSums(float* shared) : shared_(shared) {}  // kFloats

  // Up to two sums take the place of their terms, in every thread.
  template <int kCount>
  __device__ void Add(float (&values)[kCount]) {
    static_assert(kCount <= 2);
    float* const sums = shared_ + turn_ * (kFloats / 2);
    turn_ = 1 - turn_;
    const int warps = static_cast<int>(blockDim.x) / kWarpLanes;
    for (int i = 0; i < kCount; ++i) {
      values[i] = WarpSum(values[i]);
      if (ThisLane() == 0) sums[i * kWarpLanes + ThisWarp()] = values[i];
    }
    SyncBlock();
    for (int i = 0; i < kCount; ++i) {
      values[i] = 0;
      for (int warp = 0; warp < warps; ++warp) values[i] += sums[i * kWarpLanes + warp];
    }
  }

 private:
  float* shared_;
  int turn_ = 0;
};

// How the blocks of a launch share rows of C columns.
struct RowSharing {
  int columns = 0;           // kColumns
  unsigned threads = 0;      // of a block
  int64_t padded_width = 0;  // columns of a row in whole packs of all threads
};

// At 256 threads with 8 columns, or 512 with 16, whose rows are the widest that fit in registers.
constexpr int MaxRowThreads(int columns) { return columns == 16 ? 512 : 256; }

// tensors: all of the site's, present or not.
template <class T>
RowSharing ShareRows(int64_t C, std::initializer_list<Tensor> tensors) {
  const bool aligned =
      C % kPack<T> == 0 && std::all_of(tensors.begin(), tensors.end(),
                                       [](const Tensor& tensor) { return Aligned(tensor.data()); });
  const auto fits = [&](int columns) {
    return aligned && C <= int64_t{columns} * MaxRowThreads(columns);
  };
  RowSharing sharing = {.columns = fits(8) ? 8 : fits(16) ? 16 : 0};
  const int64_t step = std::max(sharing.columns, kPack<T>);
  const int64_t warps = CeilingOfQuotient(C, step * kWarpLanes);
  sharing.threads =
      static_cast<unsigned>(std::min<int64_t>(warps * kWarpLanes, MaxRowThreads(sharing.columns)));
  const int64_t all = step * sharing.threads;
  sharing.padded_width = CeilingOfQuotient(C, all) * all;
  return sharing;
}

// f(std::integral_constant<int, kColumns>())
template <class F>
void WithColumns(int columns, F f) {
  switch (columns) {
    case 8:
      return f(std::integral_constant<int, 8>());
    case 16:
      return f(std::integral_constant<int, 16>());
    default:
      return f(std::integral_constant<int, 0>());
  }
}

}  // namespace twinstream::gpu
