// Attention in blocks of query rows: a thread holds the scores of one block of one head, and
// backward recomputes them from the saved log-sum-exp. The scores of a call are a causal triangle,
// whose results are written, or a rectangle, whose results are merged with those of earlier calls.
// Columns beyond a triangle's block's last row are never computed.
//   S = q k' / sqrt(D)   P = softmax(S)   O = P v
//   dv = P' dO   dP = dO v'   dS = P . (dP - rowsum(dO . O))   dq = dS k / sqrt(D)
//   dk = dS' q / sqrt(D)
#include <algorithm>
#include <cmath>

#include "core/cpu/activation_type.h"
#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"

namespace twinstream {
namespace {

// 64 rows of scores over 2048 keys are the second-level cache's size.
constexpr int64_t kBlockRows = 64;

// Query rows [begin, end) of one head and the keys [key_begin, key_end) that the last of them sees.
// The first one does not see the last `hidden` of these, the second one key more, and so on.
struct Block {
  int64_t begin, end, key_begin, key_end, hidden;
  int64_t rows() const { return end - begin; }
  int64_t keys() const { return key_end - key_begin; }
  int64_t Visible(int64_t i) const { return keys() - std::max<int64_t>(0, hidden - i); }
};

enum class Form { kTriangle, kRectangle };

// The scores that a call computes of every head.
struct Area {
  Form form;
  AttentionRectangle rows;  // the triangle's bounds, or the rectangle

  static Area Triangle(int64_t T) { return {Form::kTriangle, {.query_end = T, .key_end = T}}; }
  static Area Rectangle(const AttentionRectangle& rectangle, int64_t T) {
    const auto [query_begin, query_end, key_begin, key_end] = rectangle;
    Check(0 <= query_begin && query_begin <= query_end && query_end <= T && 0 <= key_begin &&
              key_begin < key_end && key_end <= T,
          "queries %d to %d against keys %d to %d of %d tokens", query_begin, query_end, key_begin,
          key_end, T);
    return {Form::kRectangle, rectangle};
  }
  int64_t keys() const { return rows.key_end - rows.key_begin; }
  int64_t blocks() const {
    return (rows.query_end - rows.query_begin + kBlockRows - 1) / kBlockRows;
  }
  Block At(int64_t i) const {
    const int64_t begin = rows.query_begin + i * kBlockRows,
                  end = std::min(rows.query_end, begin + kBlockRows);
    if (form == Form::kTriangle) return {begin, end, 0, end, end - begin - 1};
    return {begin, end, rows.key_begin, rows.key_end, 0};
  }
};

Tensor Matrix(float* data, int64_t rows, int64_t columns) {
  return Tensor(reinterpret_cast<std::byte*>(data), DType::kF32, Shape{rows, columns});
}

// q, k, v or a gradient of them: [B, count, T, D].
struct HeadMajor {
  Tensor data;  // [B count T, D]
  int64_t count, T;

  HeadMajor(Tensor tensor, const AttentionShape& shape, int64_t count_in)
      : count(count_in), T(shape.sequence) {
    const int64_t D = shape.head_dim;
    Check(tensor.elements() == shape.batch * count * T * D, "heads %s for [%d, %d, %d, %d]",
          tensor.shape(), shape.batch, count, T, D);
    data = tensor.Reshape({shape.batch * count * T, D});
  }
  // Head (b, i): [T, D].
  Tensor Head(int64_t b, int64_t i) const {
    return data.Rows((b * count + i) * T, (b * count + i + 1) * T);
  }
  // A block's query rows, or the keys that they see, of head (b, i): [rows, D].
  Tensor Queries(int64_t b, int64_t i, const Block& block) const {
    return Head(b, i).Rows(block.begin, block.end);
  }
  Tensor Keys(int64_t b, int64_t i, const Block& block) const {
    return Head(b, i).Rows(block.key_begin, block.key_end);
  }
};

// out or its gradient: [B*T, H*D].
template <class A>
struct TokenMajor {
  A* data;
  int64_t T, H, D;

  TokenMajor(Tensor tensor, const AttentionShape& shape)
      : data(tensor.As<A>()), T(shape.sequence), H(shape.heads), D(shape.head_dim) {
    Check(tensor.elements() == shape.rows() * H * D, "heads %s for [%d, %d]", tensor.shape(),
          shape.rows(), H * D);
  }
  A* Row(int64_t b, int64_t t, int64_t h) const { return data + ((b * T + t) * H + h) * D; }
};

float ScoreScale(const AttentionShape& shape) {
  return 1 / std::sqrt(static_cast<float>(shape.head_dim));
}

// Softmax of unscaled scores [rows, keys], in place but for the division: row i becomes
// exp(scale (s - max)), inverse_sum[i] = 1 / its sum, lse[i] its log-sum-exp.
void SoftmaxRows(const Block& block, float scale, float* scores, float* inverse_sum, float* lse) {
  for (int64_t i = 0; i < block.rows(); ++i) {
    float* row = scores + i * block.keys();
    const int64_t visible = block.Visible(i);
    float largest = row[0];
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < visible; ++j) largest = std::max(largest, row[j]);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < visible; ++j) {
      row[j] = Exp(scale * (row[j] - largest));
      sum += row[j];
    }
    std::fill(row + visible, row + block.keys(), 0.0F);
    inverse_sum[i] = 1 / sum;
    lse[i] = scale * largest + std::log(sum);
  }
}

// scores [rows, keys]: unscaled scores become probabilities. dscores: gradients of the
// probabilities become gradients of the unscaled scores. delta[i] = sum of dO . O of row i.
void SoftmaxRowsBackward(const Block& block, float scale, const float* lse, const float* delta,
                         float* scores, float* dscores) {
  for (int64_t i = 0; i < block.rows(); ++i) {
    float* row = scores + i * block.keys();
    float* drow = dscores + i * block.keys();
    const int64_t visible = block.Visible(i);
    const float row_lse = lse[i], row_delta = delta[i];
#pragma omp simd
    for (int64_t j = 0; j < visible; ++j) {
      const float p = Exp(scale * row[j] - row_lse);
      row[j] = p;
      drow[j] = p * (drow[j] - row_delta) * scale;
    }
    std::fill(row + visible, row + block.keys(), 0.0F);
    std::fill(drow + visible, drow + block.keys(), 0.0F);
  }
}

// A block's rows of head (b, h), contiguous: [rows, D].
template <class A>
void Gather(const Block& block, int64_t b, int64_t h, const TokenMajor<A>& from, float* rows) {
  for (int64_t i = 0; i < block.rows(); ++i) {
    VectorLoop(from.D, [source = from.Row(b, block.begin + i, h),
                        to = rows + i * from.D](int64_t d) { to[d] = source[d]; });
  }
}

// delta[i] = sum of dO . O of row i. do_rows: [rows, D].
template <class A>
void RowDeltas(const Block& block, int64_t b, int64_t h, const TokenMajor<A>& out,
               const float* do_rows, float* delta) {
  for (int64_t i = 0; i < block.rows(); ++i) {
    delta[i] = VectorSum(out.D,
                         [o = out.Row(b, block.begin + i, h), gradient = do_rows + i * out.D](
                             int64_t d) -> float { return gradient[d] * o[d]; });
  }
}

// One row's softmax (part / its sum) v over further keys, and their log-sum-exp, taken into the
// row's result over earlier keys.
template <class A>
void MergeRow(int64_t D, const float* part, float inverse_sum, float part_lse, A* out, float* lse) {
  const float largest = std::max(*lse, part_lse);
  const float merged = largest + std::log(std::exp(*lse - largest) + std::exp(part_lse - largest));
  const float earlier = std::exp(*lse - merged),
              further = std::exp(part_lse - merged) * inverse_sum;
#pragma omp simd
  for (int64_t d = 0; d < D; ++d) out[d] = earlier * out[d] + further * part[d];
  *lse = merged;
}

// Activations are of type A; scores, their gradients and all sums are float32.
template <class A>
void Forward(const CpuOps& ops, const AttentionShape& shape, const Area& area,
             const AttentionTensors& t) {
  const int64_t T = shape.sequence, H = shape.heads, K = shape.kv_heads, D = shape.head_dim;
  Check(K > 0 && H % K == 0, "%d query heads over %d key heads", H, K);
  const HeadMajor queries(t.q, shape, H), keys(t.k, shape, K), values(t.v, shape, K);
  const TokenMajor<A> outputs(t.out, shape);
  float* lse_rows = t.lse.As<float>();  // [B, H, T]
  const float scale = ScoreScale(shape);
  const int64_t blocks = area.blocks();
  // Neighbouring items are blocks of one head: a thread's range shares keys and values in cache.
  ParallelRows(shape.batch * H * blocks, 1, [&](int64_t begin, int64_t end) {
    float* scores =
        ThreadScratch<AttentionShape>(kBlockRows * (area.keys() + D + 2));  // [rows, keys]
    float* product = scores + kBlockRows * area.keys();                     // [rows, D]
    float* inverse_sum = product + kBlockRows * D;                          // [rows]
    float* block_lse = inverse_sum + kBlockRows;                            // [rows]
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / blocks / H, h = item / blocks % H, kv = h / (H / K);
      const Block block = area.At(item % blocks);
      const Tensor score_block = Matrix(scores, block.rows(), block.keys());
      ops.Matmul(score_block, queries.Queries(b, h, block), keys.Keys(b, kv, block),
                 {.transpose_b = true});
      SoftmaxRows(block, scale, scores, inverse_sum, block_lse);
      ops.Matmul(Matrix(product, block.rows(), D), score_block, values.Keys(b, kv, block), {});
      for (int64_t i = 0; i < block.rows(); ++i) {
        A* to = outputs.Row(b, block.begin + i, h);
        float* to_lse = lse_rows + (b * H + h) * T + block.begin + i;
        if (area.form == Form::kRectangle) {
          MergeRow(D, product + i * D, inverse_sum[i], block_lse[i], to, to_lse);
          continue;
        }
        VectorLoop(D, [to, from = product + i * D, factor = inverse_sum[i]](int64_t d) {
          to[d] = from[d] * factor;
        });
        *to_lse = block_lse[i];
      }
    }
  });
}

// What the backward of one key/value head sums up, float32 [T, D] each: the gradients themselves,
// or `memory` for them until they are rounded.
struct KeyGradients {
  KeyGradients(Tensor dk_in, Tensor dv_in, float* memory) : dk(dk_in), dv(dv_in) {
    if (dk.dtype() == DType::kF32) return;
    dk = Matrix(memory, dk_in.dim(0), dk_in.dim(1));
    dv = Matrix(memory + dk_in.elements(), dv_in.dim(0), dv_in.dim(1));
  }
  Tensor Of(Tensor sums, const Block& block) const {
    return sums.Rows(block.key_begin, block.key_end);
  }
  Tensor dk, dv;
};

template <class A>
void Backward(const CpuOps& ops, const AttentionShape& shape, const Area& area,
              const AttentionTensors& t, const AttentionGradients& g) {
  const int64_t T = shape.sequence, H = shape.heads, K = shape.kv_heads, D = shape.head_dim;
  Check(K > 0 && H % K == 0, "%d query heads over %d key heads", H, K);
  const HeadMajor queries(t.q, shape, H), keys(t.k, shape, K), values(t.v, shape, K);
  const HeadMajor dqueries(g.dq, shape, H), dkeys(g.dk, shape, K), dvalues(g.dv, shape, K);
  const TokenMajor<A> outputs(t.out, shape), doutputs(g.dout, shape);
  const float* lse_rows = t.lse.As<float>();  // [B, H, T]
  const float scale = ScoreScale(shape);
  const bool rectangle = area.form == Form::kRectangle;

  // The blocks of every query head of (b, kv) add to the same dk and dv: one thread takes them all.
  // Blocks come last to first: a triangle's first one taken covers all keys, so it writes instead
  // of adding.
  const auto group = [&](int64_t b, int64_t kv) {
    float* scores = ThreadScratch<AttentionShape>(kBlockRows * (2 * area.keys() + D + 1) +
                                                  2 * T * D);  // [rows, keys]
    float* dscores = scores + kBlockRows * area.keys();        // [rows, keys]
    float* do_rows = dscores + kBlockRows * area.keys();       // [rows, D]
    float* delta = do_rows + kBlockRows * D;                   // [rows]
    const Tensor dk_rows = dkeys.Head(b, kv), dv_rows = dvalues.Head(b, kv);
    const KeyGradients sums(dk_rows, dv_rows, delta + kBlockRows);
    const bool rounds = sums.dk.data() != dk_rows.data();
    if (rounds && rectangle) {  // what the sums are added to
      ops.Cast(sums.dk, dk_rows);
      ops.Cast(sums.dv, dv_rows);
    }
    const int64_t first_head = kv * (H / K);
    for (int64_t h = first_head; h < first_head + H / K; ++h) {
      for (int64_t i = area.blocks() - 1; i >= 0; --i) {
        const Block block = area.At(i);
        const bool add = rectangle || h != first_head || block.end != T;
        const Tensor q_block = queries.Queries(b, h, block);
        const Tensor k_block = keys.Keys(b, kv, block);
        const Tensor do_block = Matrix(do_rows, block.rows(), D);
        const Tensor s_block = Matrix(scores, block.rows(), block.keys());
        const Tensor ds_block = Matrix(dscores, block.rows(), block.keys());
        Gather(block, b, h, doutputs, do_rows);
        RowDeltas(block, b, h, outputs, do_rows, delta);
        ops.Matmul(s_block, q_block, k_block, {.transpose_b = true});
        ops.Matmul(ds_block, do_block, values.Keys(b, kv, block), {.transpose_b = true});
        SoftmaxRowsBackward(block, scale, lse_rows + (b * H + h) * T + block.begin, delta, scores,
                            dscores);
        ops.Matmul(sums.Of(sums.dv, block), s_block, do_block,
                   {.transpose_a = true, .accumulate = add});
        ops.Matmul(dqueries.Queries(b, h, block), ds_block, k_block, {.accumulate = rectangle});
        ops.Matmul(sums.Of(sums.dk, block), ds_block, q_block,
                   {.transpose_a = true, .accumulate = add});
      }
    }
    if (!rounds) return;
    ops.Cast(dk_rows, sums.dk);
    ops.Cast(dv_rows, sums.dv);
  };
  ParallelRows(shape.batch * K, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) group(pair / K, pair % K);
  });
}

}  // namespace

void CpuOps::AttentionForward(const AttentionShape& shape, const AttentionTensors& t) const {
  WithActivationType(t.out.dtype(), [&]<class A>(std::type_identity<A>) {
    Forward<A>(*this, shape, Area::Triangle(shape.sequence), t);
  });
}

void CpuOps::AttentionBackward(const AttentionShape& shape, const AttentionTensors& t,
                               const AttentionGradients& g) const {
  WithActivationType(t.out.dtype(), [&]<class A>(std::type_identity<A>) {
    Backward<A>(*this, shape, Area::Triangle(shape.sequence), t, g);
  });
}

void CpuOps::AttentionMergeForward(const AttentionShape& shape, const AttentionRectangle& rectangle,
                                   const AttentionTensors& t) const {
  WithActivationType(t.out.dtype(), [&]<class A>(std::type_identity<A>) {
    Forward<A>(*this, shape, Area::Rectangle(rectangle, shape.sequence), t);
  });
}

void CpuOps::AttentionMergeBackward(const AttentionShape& shape,
                                    const AttentionRectangle& rectangle, const AttentionTensors& t,
                                    const AttentionGradients& g) const {
  WithActivationType(t.out.dtype(), [&]<class A>(std::type_identity<A>) {
    Backward<A>(*this, shape, Area::Rectangle(rectangle, shape.sequence), t, g);
  });
}

}  // namespace twinstream
