#include "core/cpu/packed_product.h"

#include <algorithm>
#include <array>

#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

// Blocks are kProductDepth factors deep. One of a takes 77 KB of a second-level cache (AVX-512: 123
// KB); one of b, whose panels come by one after another, 1.3 MB of memory (1 MB).
constexpr int64_t kBlockRows = 10 * kTileRows;
constexpr int64_t kBlockColumns = 1024;
static_assert(kBlockColumns % kPanelColumns == 0);

// A bf16 result is summed up in float32, for so many rows of a block's columns at a time: 3.75 MiB.
constexpr int64_t kRoundedRows = 960;
static_assert(kRoundedRows % kBlockRows == 0);

// A rectangle of the result, on one thread.
template <class Factor>
class Rectangle {
 public:
  Rectangle(int64_t K, PackedResult result, ProductOperand a, ProductOperand b)
      : K_(K), result_(result), a_(a), b_(b) {
    const bool rounds = result.dtype == DType::kBF16;
    constexpr int64_t kPanels = kProductDepth * kBlockColumns, kLeft = kProductDepth * kBlockRows;
    static_assert(sizeof(Factor) == sizeof(float));
    float* const memory =
        ThreadScratch<PackedResult>(kPanels + kLeft + (rounds ? kRoundedRows * kBlockColumns : 0));
    panels_ = reinterpret_cast<Factor*>(memory);
    left_ = panels_ + kPanels;
    if (rounds) sums_ = memory + kPanels + kLeft;
  }

  void Compute(Range rows, Range columns) const {
    const int64_t part = sums_ == nullptr ? rows.size() : kRoundedRows;
    ForEachPart(columns, kBlockColumns, [&](Range block_columns) {
      ForEachPart(rows, part, [&](Range part_rows) { ComputePart(part_rows, block_columns); });
    });
  }

 private:
  void ComputePart(Range rows, Range columns) const {
    ForEachPart({0, K_}, kProductDepth * kFactorDepth<Factor>, [&](Range depth) {
      const RightOperand<Factor> right = PackRight(b_, depth, columns, panels_);
      ForEachPart(rows, kBlockRows, [&](Range block) {
        const bool first = depth.begin == 0, last = depth.end == K_;
        ProductResult sums = SumsOf(rows, block, columns, first && last);
        if (sums_ != nullptr && first && result_.add) {
          CopyRows(block.size(), columns.size(), ResultAt<BFloat16>(block, columns), result_.stride,
                   sums.data, sums.stride);
        }
        sums.add = result_.add || !first;
        const LeftOperand<Factor> left = PackLeft(a_, block, depth, left_);
        AddBlock({block.size(), columns.size(), FactorsOf<Factor>(depth.size())}, sums, left,
                 right);
        if (sums_ != nullptr && last) {
          CopyRows(block.size(), columns.size(), sums.data, sums.stride,
                   ResultAt<BFloat16>(block, columns), result_.stride);
        }
      });
    });
  }

  // Where a block of `rows` is summed up. Of one depth alone, blocks of a bf16 result take turns in
  // 240 KB (AVX-512: 480 KB), which stay in a second-level cache.
  ProductResult SumsOf(Range rows, Range block, Range columns, bool one_depth) const {
    if (sums_ == nullptr) return {ResultAt<float>(block, columns), result_.stride};
    const int64_t row = one_depth ? 0 : block.begin - rows.begin;
    return {sums_ + row * kBlockColumns, kBlockColumns};
  }

  template <class T>
  T* ResultAt(Range rows, Range columns) const {
    return reinterpret_cast<T*>(result_.data) + rows.begin * result_.stride + columns.begin;
  }

  // As SmallProduct, of any number of columns, at most kBlockRows rows and kProductDepth deep.
  static void AddBlock(ProductSizes sizes, ProductResult result, LeftOperand<Factor> a,
                       RightOperand<Factor> b) {
    const auto [rows, columns, depth] = sizes;
    const int64_t whole = columns / kPanelColumns * kPanelColumns;
    SmallProduct({rows, whole, depth}, result, a, b);
    if (whole == columns) return;
    std::array<float, kBlockRows * kPanelColumns> last;
    SmallProduct({rows, kPanelColumns, depth}, {.data = last.data(), .stride = kPanelColumns}, a,
                 b.From(0, whole));
    for (int64_t i = 0; i < rows; ++i) {
      float* const row = result.data + i * result.stride + whole;
      for (int64_t j = 0; j < columns - whole; ++j) {
        row[j] = last[i * kPanelColumns + j] + (result.add ? row[j] : 0);
      }
    }
  }

  int64_t K_;
  PackedResult result_;
  ProductOperand a_, b_;
  Factor *panels_, *left_;
  float* sums_ = nullptr;  // of a bf16 result
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

template <class Factor>
void ProductOf(ProductSizes sizes, PackedResult result, ProductOperand a, ProductOperand b) {
  constexpr int64_t kWorkOfThread = 1 << 20;
  const int64_t threads = RangeCount(sizes.M * sizes.N * sizes.K, kWorkOfThread);
  const Cuts cuts = CutsFor(sizes, threads);
  ParallelRanges(threads, threads, [=](int64_t thread, int64_t, int64_t) {
    Rectangle<Factor>(sizes.K, result, a, b)
        .Compute(PartOf(sizes.M, kTileRows, thread / cuts.columns, cuts.rows),
                 PartOf(sizes.N, kPanelColumns, thread % cuts.columns, cuts.columns));
  });
}

}  // namespace

bool PaysToPack(ProductSizes sizes) {
  constexpr int64_t kLeast = 64;
  return sizes.M >= kLeast && sizes.N >= kLeast;
}

void PackedProduct(ProductSizes sizes, PackedResult result, ProductOperand a, ProductOperand b) {
  const bool pairs = a.dtype == DType::kBF16 && b.dtype == DType::kBF16;
  return pairs ? ProductOf<BFloat16Factor>(sizes, result, a, b)
               : ProductOf<float>(sizes, result, a, b);
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
