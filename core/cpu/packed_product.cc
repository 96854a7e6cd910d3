#include "core/cpu/packed_product.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/cpu/parallel.h"

namespace twinstream {
namespace {

// Blocks are kProductDepth deep. One of a takes 77 KB of a second-level cache; one of b, whose
// panels come by one after another, 1.3 MB of memory.
constexpr int64_t kBlockRows = 10 * kTileRows;
constexpr int64_t kBlockColumns = 64 * kPanelColumns;

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Calls f(part) on [begin, end) in parts of `size`, the last one smaller.
template <class F>
void ForEachPart(Range range, int64_t size, F f) {
  for (int64_t begin = range.begin; begin < range.end; begin += size) {
    f(Range{begin, std::min(begin + size, range.end)});
  }
}

// As std::copy_n, where nearly all copies are of kMost: those need no call.
template <int64_t kMost>
void CopyUpTo(const float* from, int64_t count, float* to) {
  if (count == kMost) {
    std::memcpy(to, from, kMost * sizeof(float));
  } else {
    std::copy_n(from, count, to);
  }
}

// to[j * to_stride + i] <- from[i * from_stride + j], 8 x 8.
void Transpose8(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  using Vector = float __attribute__((vector_size(32)));
  std::array<Vector, 8> rows, pairs;
  for (int64_t i = 0; i < 8; ++i) std::memcpy(&rows[i], from + i * from_stride, sizeof(Vector));
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

// A panel of rows `depth` and columns `columns` of b, which are as many as it has or, in a last
// one, fewer: then it ends with zeros.
void PackPanel(ProductOperand b, Range depth, Range columns, float* to) {
  if (columns.size() < kPanelColumns) std::fill_n(to, depth.size() * kPanelColumns, 0.0F);
  int64_t k = depth.begin;
  if (b.transposed && columns.size() == kPanelColumns) {
    for (; k + 8 <= depth.end; k += 8, to += 8 * kPanelColumns) {
      const float* const from = b.data + columns.begin * b.stride + k;
      Transpose8(from, b.stride, to, kPanelColumns);
      Transpose8(from + 8 * b.stride, b.stride, to + 8, kPanelColumns);
    }
  }
  for (; k < depth.end; ++k, to += kPanelColumns) {
    if (b.transposed) {
      for (int64_t j = columns.begin; j < columns.end; ++j) {
        to[j - columns.begin] = b.data[j * b.stride + k];
      }
    } else {
      CopyUpTo<kPanelColumns>(b.data + k * b.stride + columns.begin, columns.size(), to);
    }
  }
}

// Rows `rows` and columns `depth` of a: in tiles when a is stored transposed. Rows are copied as
// they are: rows a power of two apart would take each other's place in the first-level cache.
LeftOperand PackLeft(ProductOperand a, Range rows, Range depth, float* to) {
  if (!a.transposed) {
    for (int64_t i = 0; i < rows.size(); ++i) {
      std::copy_n(a.data + (rows.begin + i) * a.stride + depth.begin, depth.size(),
                  to + i * depth.size());
    }
    return LeftOperand::Rows(to, depth.size());
  }
  const LeftOperand tiles = LeftOperand::Tiles(to, depth.size());
  for (int64_t k = depth.begin; k < depth.end; ++k) {
    const float* const from = a.data + k * a.stride;
    float* tile = to + (k - depth.begin) * kTileRows;
    ForEachPart(rows, kTileRows, [&](Range part) {
      CopyUpTo<kTileRows>(from + part.begin, part.size(), tile);
      tile += depth.size() * kTileRows;
    });
  }
  return tiles;
}

// A rectangle of the result, on one thread.
class Rectangle {
 public:
  Rectangle(int64_t K, ProductResult result, ProductOperand a, ProductOperand b)
      : K_(K), result_(result), a_(a), b_(b) {
    panels_ = ThreadScratch<Rectangle>(kProductDepth * (kBlockColumns + kBlockRows));
    left_ = panels_ + kProductDepth * kBlockColumns;
  }

  void Compute(Range rows, Range columns) const {
    ForEachPart(columns, kBlockColumns, [&](Range block_columns) {
      ForEachPart({0, K_}, kProductDepth, [&](Range depth) {
        float* panel = panels_;
        ForEachPart(block_columns, kPanelColumns, [&](Range columns_of_panel) {
          PackPanel(b_, depth, columns_of_panel, panel);
          panel += depth.size() * kPanelColumns;
        });
        ForEachPart(rows, kBlockRows,
                    [&](Range block_rows) { AddBlock(block_rows, block_columns, depth); });
      });
    });
  }

 private:
  // The part of a block of the result that is the sum over `depth`.
  void AddBlock(Range rows, Range columns, Range depth) const {
    const LeftOperand left = PackLeft(a_, rows, depth, left_);
    const RightOperand right = RightOperand::Panels(panels_, depth.size());
    const ProductResult result = {
        .data = result_.data + rows.begin * result_.stride + columns.begin,
        .stride = result_.stride,
        .add = result_.add || depth.begin > 0};
    const int64_t whole = columns.size() / kPanelColumns * kPanelColumns;
    SmallProduct({rows.size(), whole, depth.size()}, result, left, right);
    if (whole == columns.size()) return;
    std::array<float, kBlockRows * kPanelColumns> last;
    SmallProduct({rows.size(), kPanelColumns, depth.size()},
                 {.data = last.data(), .stride = kPanelColumns}, left, right.From(0, whole));
    for (int64_t i = 0; i < rows.size(); ++i) {
      float* const row = result.data + i * result.stride + whole;
      for (int64_t j = 0; j < columns.size() - whole; ++j) {
        row[j] = last[i * kPanelColumns + j] + (result.add ? row[j] : 0);
      }
    }
  }

  int64_t K_;
  ProductResult result_;
  ProductOperand a_, b_;
  float *panels_, *left_;
};

// Part `index` of `parts` of [0, count), in whole steps.
Range PartOf(int64_t count, int64_t step, int64_t index, int64_t parts) {
  const int64_t steps = (count + step - 1) / step;
  return {steps * index / parts * step, std::min(count, steps * (index + 1) / parts * step)};
}

// Into how many parts rows and columns are cut.
struct Cuts {
  int64_t rows, columns;
};

// A thread each, with the least to copy and read: the shortest sides.
Cuts CutsFor(ProductSizes sizes, int64_t threads) {
  Cuts best = {threads, 1};
  const auto side = [&](Cuts cuts) {
    return PartOf(sizes.M, kTileRows, cuts.rows - 1, cuts.rows).size() +
           PartOf(sizes.N, kPanelColumns, cuts.columns - 1, cuts.columns).size();
  };
  for (int64_t rows = 1; rows < threads; ++rows) {
    if (threads % rows != 0) continue;
    const Cuts cuts = {rows, threads / rows};
    if (side(cuts) < side(best)) best = cuts;
  }
  return best;
}

}  // namespace

bool PaysToPack(ProductSizes sizes) {
  constexpr int64_t kLeast = 64;
  return sizes.M >= kLeast && sizes.N >= kLeast;
}

void PackedProduct(ProductSizes sizes, ProductResult result, ProductOperand a, ProductOperand b) {
  constexpr int64_t kWorkOfThread = 1 << 20;
  const int64_t threads = RangeCount(sizes.M * sizes.N * sizes.K, kWorkOfThread);
  const Cuts cuts = CutsFor(sizes, threads);
  ParallelRanges(threads, threads, [=](int64_t thread, int64_t, int64_t) {
    Rectangle(sizes.K, result, a, b)
        .Compute(PartOf(sizes.M, kTileRows, thread / cuts.columns, cuts.rows),
                 PartOf(sizes.N, kPanelColumns, thread % cuts.columns, cuts.columns));
  });
}

}  // namespace twinstream
