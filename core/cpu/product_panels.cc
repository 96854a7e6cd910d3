#include "core/cpu/product_panels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/activation_type.h"
#include "core/cpu/vector_math.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

constexpr int64_t kSide = 8;  // of the squares that are transposed at a time
using Vector = float __attribute__((vector_size(kSide * sizeof(float))));
using Halves = uint16_t __attribute__((vector_size(kSide * sizeof(uint16_t))));
using Words = uint32_t __attribute__((vector_size(kSide * sizeof(uint32_t))));

// kSide factors that lie one after another along K.
template <class Factor>
Vector Load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

template <class Factor>
Vector Load(const BFloat16* from) {
  if constexpr (std::is_same_v<Factor, BFloat16Pair>) {
    Vector vector;
    std::memcpy(&vector, from, sizeof(vector));
    return vector;
  } else {
    Halves halves;
    std::memcpy(&halves, from, sizeof(halves));
    return std::bit_cast<Vector>(__builtin_convertvector(halves, Words) << 16);
  }
}

// The factor of up to kFactorDepth elements along K.
template <class Factor, class T>
Factor FactorOf(const T* from, int64_t elements) {
  if constexpr (std::is_same_v<Factor, BFloat16Pair>) {
    return {from[0].bits | (elements > 1 ? uint32_t{from[1].bits} << 16 : 0)};
  } else {
    return from[0];
  }
}

// f(j) for j in [0, count), where nearly all counts are kPanelColumns: those need no call.
template <class F>
void LoopOverPanel(int64_t count, F f) {
  if (count == kPanelColumns) {
    VectorLoop(kPanelColumns, f);
  } else {
    VectorLoop(count, f);
  }
}

// to[j * to_stride + i] <- factor j of row i, [kSide, kSide].
template <class Factor, class T>
void Transpose(const T* from, int64_t from_stride, Factor* to, int64_t to_stride) {
  std::array<Vector, kSide> rows, pairs;
  for (int64_t i = 0; i < kSide; ++i) rows[i] = Load<Factor>(from + i * from_stride);
  // Exchanges elements 1, then 2, then 4 apart between the rows so far apart.
  for (int64_t i = 0; i < kSide; i += 2) {
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
  for (int64_t i = 0; i < kSide; ++i) std::memcpy(to + i * to_stride, &pairs[i], sizeof(Vector));
}

// A panel's row of factors of a matrix that is stored by rows: of elements k and, in pairs, k + 1
// if that is in `depth`.
template <class T, class Factor>
void PackRow(const ProductOperand& b, Range depth, int64_t k, Range columns, Factor* to) {
  const T* const from = b.Element<T>(k, columns.begin);
  if constexpr (std::is_same_v<Factor, BFloat16Pair>) {
    if (k + 1 < depth.end) {
      LoopOverPanel(columns.size(), [=, next = from + b.stride](int64_t j) {
        to[j].bits = from[j].bits | uint32_t{next[j].bits} << 16;
      });
    } else {
      LoopOverPanel(columns.size(), [=](int64_t j) { to[j].bits = from[j].bits; });
    }
  } else {
    LoopOverPanel(columns.size(), [=](int64_t j) { to[j] = from[j]; });
  }
}

template <class Factor, class T>
void PackPanel(const ProductOperand& b, Range depth, Range columns, Factor* to) {
  constexpr int64_t kDepth = kFactorDepth<Factor>;
  if (columns.size() < kPanelColumns) {
    std::fill_n(to, FactorsOf<Factor>(depth.size()) * kPanelColumns, Factor{});
  }
  int64_t k = depth.begin;
  if (b.transposed && columns.size() == kPanelColumns) {
    for (; k + kSide * kDepth <= depth.end; k += kSide * kDepth, to += kSide * kPanelColumns) {
      for (int64_t j = 0; j < kPanelColumns; j += kSide) {
        Transpose(b.Element<T>(k, columns.begin + j), b.stride, to + j, kPanelColumns);
      }
    }
  }
  for (; k < depth.end; k += kDepth, to += kPanelColumns) {
    if (b.transposed) {
      for (int64_t j = 0; j < columns.size(); ++j) {
        to[j] = FactorOf<Factor>(b.Element<T>(k, columns.begin + j), depth.end - k);
      }
    } else {
      PackRow<T>(b, depth, k, columns, to);
    }
  }
}

template <class Factor, class T>
RightOperand<Factor> PackRightOf(const ProductOperand& b, Range depth, Range columns,
                                 Factor* panels) {
  const int64_t factors = FactorsOf<Factor>(depth.size());
  Factor* panel = panels;
  for (int64_t begin = columns.begin; begin < columns.end; begin += kPanelColumns) {
    const Range part = {begin, std::min(begin + kPanelColumns, columns.end)};
    PackPanel<Factor, T>(b, depth, part, panel);
    panel += factors * kPanelColumns;
  }
  return RightOperand<Factor>::Panels(panels, factors);
}

// f of the type of the elements that become factors.
template <class Factor, class F>
auto WithElementType(DType dtype, F f) {
  if constexpr (std::is_same_v<Factor, BFloat16Pair>) {
    Check(dtype == DType::kBF16, "pairs of %s", NameOf(dtype));
    return f(std::type_identity<BFloat16>());
  } else {
    return WithActivationType(dtype, f);
  }
}

}  // namespace

template <class Factor>
RightOperand<Factor> PackRight(ProductOperand b, Range depth, Range columns, Factor* panels) {
  return WithElementType<Factor>(b.dtype, [&]<class T>(std::type_identity<T>) {
    return PackRightOf<Factor, T>(b, depth, columns, panels);
  });
}
template RightOperand<float> PackRight(ProductOperand, Range, Range, float*);
template RightOperand<BFloat16Pair> PackRight(ProductOperand, Range, Range, BFloat16Pair*);

}  // namespace twinstream::TWINSTREAM_CPU_ISA
