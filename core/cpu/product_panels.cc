#include "core/cpu/product_panels.h"

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

// f(j) for j in [0, count), where nearly all counts are kMost: those need no call.
template <int64_t kMost, class F>
void LoopUpTo(int64_t count, F f) {
  if (count == kMost) {
    VectorLoop(kMost, f);
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

// Asks for the part of a row that is read kAhead rows later: long rows are in pages of their own,
// which the processor's own prefetching does not follow. (Not inline, g++ takes it for one without
// effects.)
template <class T>
[[gnu::always_inline]] inline void PrefetchRow(const ProductOperand& matrix, Range depth, int64_t k,
                                               Range columns) {
  constexpr int64_t kAhead = 16, kLine = 64 / sizeof(T);
  if (k + kAhead >= depth.end) return;
  const T* const row = matrix.Element<T>(k + kAhead, columns.begin);
  for (int64_t j = 0; j < columns.size(); j += kLine) __builtin_prefetch(row + j);
}

// Up to kMost columns of a row of factors of a matrix that is stored by rows: of elements k and, in
// pairs, k + 1 if that is in `depth`.
template <int64_t kMost, class T, class Factor>
void PackRow(const ProductOperand& b, Range depth, int64_t k, Range columns, Factor* to) {
  const T* const from = b.Element<T>(k, columns.begin);
  if constexpr (std::is_same_v<Factor, BFloat16Pair>) {
    if (k + 1 < depth.end) {
      LoopUpTo<kMost>(columns.size(), [=, next = from + b.stride](int64_t j) {
        to[j].bits = from[j].bits | uint32_t{next[j].bits} << 16;
      });
    } else {
      LoopUpTo<kMost>(columns.size(), [=](int64_t j) { to[j].bits = from[j].bits; });
    }
  } else {
    LoopUpTo<kMost>(columns.size(), [=](int64_t j) { to[j] = from[j]; });
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
      PackRow<kPanelColumns, T>(b, depth, k, columns, to);
    }
  }
}

template <class Factor, class T>
LeftOperand<Factor> PackLeftOf(const ProductOperand& a, Range rows, Range depth, Factor* to) {
  const int64_t factors = FactorsOf<Factor>(depth.size());
  if (!a.transposed) {
    // Rows a power of two apart would take each other's place in the first-level cache.
    for (int64_t i = 0; i < rows.size(); ++i) {
      Factor* const row = to + i * factors;
      if (depth.size() % kFactorDepth<Factor> != 0) row[factors - 1] = {};
      CopyRow(depth.size(), a.Element<T>(rows.begin + i, depth.begin),
              reinterpret_cast<ElementOf<Factor>*>(row));
    }
    return LeftOperand<Factor>::Rows(to, factors);
  }
  ProductOperand transpose = a;
  transpose.transposed = false;
  for (int64_t k = 0; k < factors; ++k) {
    Factor* tile = to + k * kTileRows;
    const int64_t first = depth.begin + k * kFactorDepth<Factor>;
    for (int64_t i = 0; i < kFactorDepth<Factor>; ++i) {
      PrefetchRow<T>(transpose, depth, first + i, rows);
    }
    ForEachPart(rows, kTileRows, [&](Range part) {
      PackRow<kTileRows, T>(transpose, depth, first, part, tile);
      tile += factors * kTileRows;
    });
  }
  return LeftOperand<Factor>::Tiles(to, factors);
}

template <class Factor, class T>
RightOperand<Factor> PackRightOf(const ProductOperand& b, Range depth, Range columns,
                                 Factor* panels) {
  const int64_t factors = FactorsOf<Factor>(depth.size());
  Factor* panel = panels;
  ForEachPart(columns, kPanelColumns, [&](Range part) {
    PackPanel<Factor, T>(b, depth, part, panel);
    panel += factors * kPanelColumns;
  });
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

template <class Factor>
LeftOperand<Factor> PackLeft(ProductOperand a, Range rows, Range depth, Factor* to) {
  return WithElementType<Factor>(a.dtype, [&]<class T>(std::type_identity<T>) {
    return PackLeftOf<Factor, T>(a, rows, depth, to);
  });
}
template LeftOperand<float> PackLeft(ProductOperand, Range, Range, float*);
template LeftOperand<BFloat16Pair> PackLeft(ProductOperand, Range, Range, BFloat16Pair*);

}  // namespace twinstream::TWINSTREAM_CPU_ISA
