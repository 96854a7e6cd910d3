// What the forward and the backward of attention share: which scores a call computes, in blocks of
// query rows, and the products of a block.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/activation_type.h"
#include "core/cpu/product_panels.h"
#include "core/cpu/vector_math.h"
#include "core/ops.h"

namespace twinstream::TWINSTREAM_CPU_ISA {

// Whole tiles of SmallProduct. Smaller blocks read keys and values more often; 48 rows of scores
// over 2048 keys fit a second-level cache.
constexpr int64_t kBlockRows = 48;

// Query rows [begin, end) of one head and the keys [key_begin, key_end) that the last of them sees.
// The first one does not see the last `hidden` of these, the second one key more, and so on.
struct ScoreBlock {
  int64_t begin, end, key_begin, key_end, hidden;
  int64_t rows() const { return end - begin; }
  int64_t keys() const { return key_end - key_begin; }
  int64_t Visible(int64_t i) const { return keys() - std::max<int64_t>(0, hidden - i); }
  // The first row that sees key j.
  int64_t FirstRow(int64_t j) const { return std::max<int64_t>(0, j + 1 - Visible(0)); }
  // Keys that every row sees, in whole panels unless they are all. What is behind them is computed
  // for tiles of rows, each as far as its last one sees.
  int64_t shared() const {
    return hidden == 0 ? keys() : Visible(0) / kPanelColumns * kPanelColumns;
  }
};

// f(first, rows, visible) for each tile of a block's rows where they see different keys.
template <class F>
void ForEachTriangleTile(const ScoreBlock& block, F f) {
  if (block.hidden == 0) return;
  for (int64_t i = 0; i < block.rows(); i += kTileRows) {
    const int64_t rows = std::min(kTileRows, block.rows() - i);
    f(i, rows, block.Visible(i + rows - 1));
  }
}

enum class ScoreForm { kTriangle, kRectangle };

// The scores that a call computes of every head.
struct ScoreArea {
  ScoreForm form;
  AttentionRectangle rows;  // the triangle's bounds, or the rectangle

  static ScoreArea Triangle(int64_t T) {
    return {ScoreForm::kTriangle, {.query_end = T, .key_end = T}};
  }
  static ScoreArea Rectangle(const AttentionRectangle& rectangle, int64_t T) {
    const auto [query_begin, query_end, key_begin, key_end] = rectangle;
    Check(0 <= query_begin && query_begin <= query_end && query_end <= T && 0 <= key_begin &&
              key_begin < key_end && key_end <= T,
          "queries %d to %d against keys %d to %d of %d tokens", query_begin, query_end, key_begin,
          key_end, T);
    return {ScoreForm::kRectangle, rectangle};
  }
  int64_t keys() const { return rows.key_end - rows.key_begin; }
  int64_t blocks() const {
    return (rows.query_end - rows.query_begin + kBlockRows - 1) / kBlockRows;
  }
  ScoreBlock At(int64_t i) const {
    const int64_t begin = rows.query_begin + i * kBlockRows,
                  end = std::min(rows.query_end, begin + kBlockRows);
    if (form == ScoreForm::kTriangle) return {begin, end, 0, end, end - begin - 1};
    return {begin, end, rows.key_begin, rows.key_end, 0};
  }
};

// The rows [D] of a tensor's heads, wherever they lie: float32 or bf16.
class HeadRows {
 public:
  // q, k, v or a gradient of them: [B, count, T, D].
  static HeadRows HeadMajor(Tensor tensor, const AttentionShape& shape, int64_t count) {
    const int64_t T = shape.sequence, D = shape.head_dim;
    Check(tensor.elements() == shape.batch * count * T * D, "heads %s for [%d, %d, %d, %d]",
          tensor.shape(), shape.batch, count, T, D);
    return HeadRows(tensor, D, {count * T * D, T * D, D});
  }
  // out or its gradient: [B*T, H*D].
  static HeadRows TokenMajor(Tensor tensor, const AttentionShape& shape) {
    const int64_t H = shape.heads, D = shape.head_dim;
    Check(tensor.elements() == shape.rows() * H * D, "heads %s for [%d, %d]", tensor.shape(),
          shape.rows(), H * D);
    return HeadRows(tensor, D, {shape.sequence * H * D, D, H * D});
  }

  // Those of head (b, h).
  HeadRows Of(int64_t b, int64_t h) const {
    HeadRows head = *this;
    head.first_ += b * steps_.batch + h * steps_.head;
    return head;
  }
  // Its rows from row t on: [rows, D], or the transpose.
  ProductOperand Operand(int64_t t, bool transposed) const {
    return {data_ + (first_ + t * steps_.row) * SizeOf(dtype_), dtype_, steps_.row, transposed};
  }
  // to [D] <- row t of the head, exactly: To is float, or the rows are bf16.
  template <class To>
  void Read(int64_t t, To* to) const {
    With(t, [&](const auto* row) { CopyRow(D_, row, to); });
  }
  // Row t of the head <- factor from [D].
  void Write(int64_t t, const float* from, float factor) const {
    With(t, [&](auto* row) { VectorLoop(D_, [=](int64_t d) { row[d] = factor * from[d]; }); });
  }
  // Row t of the head <- own_factor times itself + factor from [D].
  void Merge(int64_t t, float own_factor, const float* from, float factor) const {
    With(t, [&](auto* row) {
      VectorLoop(D_, [=](int64_t d) { row[d] = own_factor * row[d] + factor * from[d]; });
    });
  }
  // sum over d of row t times that of another head.
  float Product(int64_t t, const HeadRows& other) const {
    float sum = 0;
    With(t, [&](const auto* row) {
      other.With(t, [&](const auto* with) {
        sum = VectorSum(D_, [=](int64_t d) -> float { return row[d] * with[d]; });
      });
    });
    return sum;
  }

 private:
  struct Steps {  // elements
    int64_t batch, head, row;
  };
  HeadRows(Tensor tensor, int64_t D, Steps steps)
      : data_(tensor.data()), dtype_(tensor.dtype()), D_(D), steps_(steps) {
    Check(dtype_ == DType::kF32 || dtype_ == DType::kBF16, "heads of %s", NameOf(dtype_));
  }
  template <class F>
  void With(int64_t t, F f) const {
    const int64_t offset = first_ + t * steps_.row;
    WithActivationType(
        dtype_, [&]<class T>(std::type_identity<T>) { f(reinterpret_cast<T*>(data_) + offset); });
  }

  std::byte* data_;
  DType dtype_;
  int64_t D_;
  Steps steps_;
  int64_t first_ = 0;
};

inline float ScoreScale(const AttentionShape& shape) {
  return 1 / std::sqrt(static_cast<float>(shape.head_dim));
}

// What all heads of a call have in common: the keys that it looks at, and sizes.
struct AttentionFrame {
  AttentionFrame(const AttentionShape& shape, const ScoreArea& area_in)
      : area(area_in),
        D(shape.head_dim),
        padded_D(PaddedToPanels(D)),
        keys(area.keys()),
        padded_keys(PaddedToPanels(keys)),
        // No power of two: rows of scores shall not meet in the same lines of a cache.
        score_stride(padded_keys + kPanelColumns),
        scale(ScoreScale(shape)) {}

  int64_t key(int64_t i) const { return area.rows.key_begin + i; }
  int64_t scores() const { return kBlockRows * score_stride; }
  int64_t block_rows() const { return kBlockRows * padded_D; }
  int64_t panels() const { return padded_keys * padded_D; }  // elements of keys or values

  const ScoreArea& area;
  int64_t D, padded_D, keys, padded_keys, score_stride;
  float scale;
};

// Cuts a thread's scratch into parts.
class Parts {
 public:
  Parts(float* memory, int64_t floats) : next_(memory), left_(floats) {}
  template <class T>
  T* Take(int64_t count) {
    const int64_t floats = count * static_cast<int64_t>(sizeof(T)) / 4;
    left_ -= floats;
    Check(left_ >= 0, "attention's scratch is %d floats too small", -left_);
    auto* const part = reinterpret_cast<T*>(next_);
    next_ += floats;
    return part;
  }

 private:
  float* next_;
  int64_t left_;
};

// Panels of rows' transpose [D, keys]: the right operand of scores.
template <class Factor>
void PackTransposed(const AttentionFrame& frame, const HeadRows& rows, Factor* panels) {
  PackRight(rows.Operand(frame.key(0), true), {0, frame.D}, {0, frame.keys}, panels);
}

// Panels of rows [keys, padded D]: the right operand of sums over keys.
template <class Factor>
void PackRows(const AttentionFrame& frame, const HeadRows& rows, Factor* panels) {
  PackRight(rows.Operand(frame.key(0), false), {0, frame.keys}, {0, frame.D}, panels);
}

// Panels of the block's rows [rows, padded D]: the right operand of sums over rows.
template <class Factor>
void PackBlock(const AttentionFrame& frame, const ScoreBlock& block, const HeadRows& rows,
               Factor* panels) {
  PackRight(rows.Operand(block.begin, false), {0, block.rows()}, {0, frame.D}, panels);
}

// to [rows, padded D] <- the block's rows.
template <class Element>
void ReadBlock(const AttentionFrame& frame, const ScoreBlock& block, const HeadRows& rows,
               Element* to) {
  for (int64_t i = 0; i < block.rows(); ++i) {
    Element* const row = to + i * frame.padded_D;
    rows.Read(block.begin + i, row);
    std::fill(row + frame.D, row + frame.padded_D, Element{});
  }
}

// scores [rows, keys] <- rows [rows, padded D] times transposed keys or values in panels. What no
// row of a tile sees is not written.
template <class Factor>
void Scores(const AttentionFrame& frame, const ScoreBlock& block, const ElementOf<Factor>* rows,
            const Factor* panels, float* scores) {
  const int64_t shared = block.shared(), depth = FactorsOf<Factor>(frame.D);
  const auto left = LeftOperand<Factor>::Rows(reinterpret_cast<const Factor*>(rows),
                                              FactorsOf<Factor>(frame.padded_D));
  const auto right = RightOperand<Factor>::Panels(panels, depth);
  SmallProduct({block.rows(), PaddedToPanels(shared), depth},
               {.data = scores, .stride = frame.score_stride}, left, right);
  ForEachTriangleTile(block, [&](int64_t first, int64_t tile_rows, int64_t visible) {
    SmallProduct(
        {tile_rows, PaddedToPanels(visible - shared), depth},
        {.data = scores + first * frame.score_stride + shared, .stride = frame.score_stride},
        left.From(first, 0), right.From(0, shared));
  });
}

// result [rows, padded D] = or += scores [rows, keys] times rows of keys or values in panels. Where
// a row sees no key its scores are zeros, up to a whole factor.
template <class Factor>
void SumOverKeys(const AttentionFrame& frame, const ScoreBlock& block,
                 const ElementOf<Factor>* scores, const Factor* panels, ProductResult result) {
  const int64_t shared = block.shared(), first_key = shared / kFactorDepth<Factor>;
  const auto left = LeftOperand<Factor>::Rows(reinterpret_cast<const Factor*>(scores),
                                              FactorsOf<Factor>(frame.score_stride));
  const auto right = RightOperand<Factor>::Panels(panels, FactorsOf<Factor>(frame.keys));
  SmallProduct({block.rows(), frame.padded_D, FactorsOf<Factor>(shared)}, result, left, right);
  ForEachTriangleTile(block, [&](int64_t first, int64_t tile_rows, int64_t visible) {
    SmallProduct({tile_rows, frame.padded_D, FactorsOf<Factor>(visible - shared)},
                 {.data = result.data + first * result.stride,
                  .stride = result.stride,
                  .add = result.add || shared > 0},
                 left.From(first, first_key), right.From(first_key, 0));
  });
}

// sums [keys, padded D] += scores' times the block's rows in panels. scores: rows of factors, those
// of pairs each of two rows of scores.
template <class Factor>
void AddOverRows(const AttentionFrame& frame, const ScoreBlock& block, const Factor* scores,
                 const Factor* panels, float* sums) {
  const int64_t depth = FactorsOf<Factor>(block.rows());
  const auto add = [&](int64_t first_key, int64_t keys, int64_t first_row) {
    const int64_t first = first_row / kFactorDepth<Factor>;
    SmallProduct({keys, frame.padded_D, depth - first},
                 {.data = sums + first_key * frame.padded_D, .stride = frame.padded_D, .add = true},
                 LeftOperand<Factor>::Transposed(scores, frame.score_stride).From(first_key, first),
                 RightOperand<Factor>::Panels(panels, depth).From(first, 0));
  };
  add(0, block.shared(), 0);
  for (int64_t key = block.shared(); key < block.keys(); key += kTileRows) {
    add(key, std::min(kTileRows, block.keys() - key), block.FirstRow(key));
  }
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
