#include "core/cpu/product_panels.h"

#include <array>
#include <cstring>

#include "core/activation_type.h"
#include "core/cpu/vector_math.h"

namespace twinstream {
namespace {

using Vector = float __attribute__((vector_size(32)));

Vector Load8(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

Vector Load8(const BFloat16* from) {
  using Halves = uint16_t __attribute__((vector_size(16)));
  using Words = uint32_t __attribute__((vector_size(32)));
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  const Words words = __builtin_convertvector(halves, Words) << 16;
  return std::bit_cast<Vector>(words);
}

// As std::copy_n, where nearly all copies are of kMost: those need no call.
template <int64_t kMost, class T>
void CopyUpTo(const T* from, int64_t count, float* to) {
  const auto copy = [=](int64_t j) { to[j] = from[j]; };
  if (count == kMost) {
    VectorLoop(kMost, copy);
  } else {
    VectorLoop(count, copy);
  }
}

// to[j * to_stride + i] <- from[i * from_stride + j], 8 x 8.
template <class T>
void Transpose8(const T* from, int64_t from_stride, float* to, int64_t to_stride) {
  std::array<Vector, 8> rows, pairs;
  for (int64_t i = 0; i < 8; ++i) rows[i] = Load8(from + i * from_stride);
  // Exchanges elements 1, then 2, then 4 apart between the rows so far apart.
  for (int64_t i = 0; i < 8; i += 2) {
    pairs[i] = __builtin_shufflevector(rows[i], rows[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    pairs[i + 1] = __builtin_shufflevector(rows[i], rows[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int64_t i : {0, 1, 4, 5}) {
    rows[i] = __builtin_shufflevector(pairs[i], pairs[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    rows[i + 2] = __builtin_shufflevector(pairs[i], pairs[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int64_t i = 0; i < 4; ++i) {
    pairs[i] = __builtin_shufflevector(rows[i], rows[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    pairs[i + 4] = __builtin_shufflevector(rows[i], rows[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int64_t i = 0; i < 8; ++i) std::memcpy(to + i * to_stride, &pairs[i], sizeof(Vector));
}

template <class T>
void PackPanel(const ProductOperand& b, Range depth, Range columns, float* to) {
  if (columns.size() < kPanelColumns) std::fill_n(to, depth.size() * kPanelColumns, 0.0F);
  int64_t k = depth.begin;
  if (b.transposed && columns.size() == kPanelColumns) {
    for (; k + 8 <= depth.end; k += 8, to += 8 * kPanelColumns) {
      const T* const from = b.Element<T>(k, columns.begin);
      Transpose8(from, b.stride, to, kPanelColumns);
      Transpose8(from + 8 * b.stride, b.stride, to + 8, kPanelColumns);
    }
  }
  for (; k < depth.end; ++k, to += kPanelColumns) {
    const T* const from = b.Element<T>(k, columns.begin);
    if (b.transposed) {
      for (int64_t j = 0; j < columns.size(); ++j) to[j] = from[j * b.stride];
    } else {
      CopyUpTo<kPanelColumns>(from, columns.size(), to);
    }
  }
}

template <class T>
LeftOperand PackLeftOf(const ProductOperand& a, Range rows, Range depth, float* to) {
  if (!a.transposed) {
    // Rows a power of two apart would take each other's place in the first-level cache.
    CopyRows(rows.size(), depth.size(), a.Element<T>(rows.begin, depth.begin), a.stride, to,
             depth.size());
    return LeftOperand::Rows(to, depth.size());
  }
  const LeftOperand tiles = LeftOperand::Tiles(to, depth.size());
  for (int64_t k = depth.begin; k < depth.end; ++k) {
    const T* const from = a.Element<T>(0, k);
    float* tile = to + (k - depth.begin) * kTileRows;
    ForEachPart(rows, kTileRows, [&](Range part) {
      CopyUpTo<kTileRows>(from + part.begin, part.size(), tile);
      tile += depth.size() * kTileRows;
    });
  }
  return tiles;
}

}  // namespace

RightOperand PackRight(ProductOperand b, Range depth, Range columns, float* panels) {
  WithActivationType(b.dtype, [&]<class T>(std::type_identity<T>) {
    float* panel = panels;
    ForEachPart(columns, kPanelColumns, [&](Range part) {
      PackPanel<T>(b, depth, part, panel);
      panel += depth.size() * kPanelColumns;
    });
  });
  return RightOperand::Panels(panels, depth.size());
}

LeftOperand PackLeft(ProductOperand a, Range rows, Range depth, float* to) {
  return WithActivationType(
      a.dtype, [&]<class T>(std::type_identity<T>) { return PackLeftOf<T>(a, rows, depth, to); });
}

}  // namespace twinstream
