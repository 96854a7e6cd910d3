// Causal attention in blocks of query rows: a thread holds the scores of one block of one head, and
// backward recomputes them from the saved log-sum-exp. Columns beyond a block's last row are never
// computed.
//   S = q k' / sqrt(D)   P = softmax(S)   O = P v
//   dv = P' dO   dP = dO v'   dS = P . (dP - rowsum(dO . O))   dq = dS k / sqrt(D)
//   dk = dS' q / sqrt(D)
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"

namespace twinstream {
namespace {

// 64 rows of scores over 2048 keys are the second-level cache's size.
constexpr int64_t kBlockRows = 64;

// Query rows [begin, end) of one head; they see keys [0, end).
struct Block {
  int64_t begin, end;
  int64_t rows() const { return end - begin; }
};

int64_t BlockCount(int64_t T) { return (T + kBlockRows - 1) / kBlockRows; }

Block BlockAt(int64_t T, int64_t i) { return {i * kBlockRows, std::min(T, (i + 1) * kBlockRows)}; }

Tensor Matrix(float* data, int64_t rows, int64_t columns) {
  return Tensor(reinterpret_cast<std::byte*>(data), DType::kF32, Shape{rows, columns});
}

// This thread's temporaries; grown at the first step, the same memory afterwards.
float* ThreadScratch(int64_t floats) {
  thread_local std::vector<float> memory;
  if (memory.size() < static_cast<size_t>(floats)) memory.resize(static_cast<size_t>(floats));
  return memory.data();
}

// q, k, v or a gradient of them: [B, count, T, D].
struct HeadMajor {
  float* data;
  int64_t count, T, D;

  HeadMajor(Tensor tensor, const AttentionShape& shape, int64_t count_in)
      : data(tensor.As<float>()), count(count_in), T(shape.sequence), D(shape.head_dim) {
    Check(tensor.elements() == shape.batch * count * T * D, "heads %s for [%d, %d, %d, %d]",
          tensor.shape(), shape.batch, count, T, D);
  }
  // Rows [begin, end) of head (b, i): [rows, D].
  Tensor Rows(int64_t b, int64_t i, int64_t begin, int64_t end) const {
    return Matrix(data + ((b * count + i) * T + begin) * D, end - begin, D);
  }
};

// out or its gradient: [B*T, H*D].
struct TokenMajor {
  float* data;
  int64_t T, H, D;

  TokenMajor(Tensor tensor, const AttentionShape& shape)
      : data(tensor.As<float>()), T(shape.sequence), H(shape.heads), D(shape.head_dim) {
    Check(tensor.elements() == shape.rows() * H * D, "heads %s for [%d, %d]", tensor.shape(),
          shape.rows(), H * D);
  }
  float* Row(int64_t b, int64_t t, int64_t h) const { return data + ((b * T + t) * H + h) * D; }
};

float ScoreScale(const AttentionShape& shape) {
  return 1 / std::sqrt(static_cast<float>(shape.head_dim));
}

// Causal softmax of unscaled scores [rows, end], in place but for the division: row i becomes
// exp(scale (s - max)), inverse_sum[i] = 1 / its sum, lse[i] its log-sum-exp.
void SoftmaxRows(const Block& block, float scale, float* scores, float* inverse_sum, float* lse) {
  for (int64_t i = 0; i < block.rows(); ++i) {
    float* row = scores + i * block.end;
    const int64_t visible = block.begin + i + 1;
    float largest = row[0];
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < visible; ++j) largest = std::max(largest, row[j]);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < visible; ++j) {
      row[j] = Exp(scale * (row[j] - largest));
      sum += row[j];
    }
    std::fill(row + visible, row + block.end, 0.0F);
    inverse_sum[i] = 1 / sum;
    lse[i] = scale * largest + std::log(sum);
  }
}

// scores [rows, end]: unscaled scores become probabilities. dscores: gradients of the
// probabilities become gradients of the unscaled scores. delta[i] = sum of dO . O of row i.
void SoftmaxRowsBackward(const Block& block, float scale, const float* lse, const float* delta,
                         float* scores, float* dscores) {
  for (int64_t i = 0; i < block.rows(); ++i) {
    float* row = scores + i * block.end;
    float* drow = dscores + i * block.end;
    const int64_t visible = block.begin + i + 1;
    const float row_lse = lse[i], row_delta = delta[i];
#pragma omp simd
    for (int64_t j = 0; j < visible; ++j) {
      const float p = Exp(scale * row[j] - row_lse);
      row[j] = p;
      drow[j] = p * (drow[j] - row_delta) * scale;
    }
    std::fill(row + visible, row + block.end, 0.0F);
    std::fill(drow + visible, drow + block.end, 0.0F);
  }
}

// One block's dO, contiguous: [rows, D]; delta[i] = sum of dO . O of row i.
void GatherGradient(const Block& block, int64_t b, int64_t h, const TokenMajor& dout,
                    const TokenMajor& out, float* gathered, float* delta) {
  const int64_t D = dout.D;
  for (int64_t i = 0; i < block.rows(); ++i) {
    const float* from = dout.Row(b, block.begin + i, h);
    const float* o = out.Row(b, block.begin + i, h);
    float* to = gathered + i * D;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < D; ++d) {
      to[d] = from[d];
      sum += from[d] * o[d];
    }
    delta[i] = sum;
  }
}

}  // namespace

void CpuOps::AttentionForward(const AttentionShape& shape, Tensor out, Tensor lse, Tensor q,
                              Tensor k, Tensor v) const {
  const int64_t T = shape.sequence, H = shape.heads, K = shape.kv_heads, D = shape.head_dim;
  Check(K > 0 && H % K == 0, "%d query heads over %d key heads", H, K);
  const HeadMajor queries(q, shape, H), keys(k, shape, K), values(v, shape, K);
  const TokenMajor outputs(out, shape);
  float* lse_rows = lse.As<float>();  // [B, H, T]
  const float scale = ScoreScale(shape);
  const int64_t blocks = BlockCount(T);
  // Neighbouring items are blocks of one head: a thread's range shares keys and values in cache.
  ParallelRows(shape.batch * H * blocks, 1, [&](int64_t begin, int64_t end) {
    float* scores = ThreadScratch(kBlockRows * (T + D + 1));  // [rows, end]
    float* product = scores + kBlockRows * T;                 // [rows, D]
    float* inverse_sum = product + kBlockRows * D;            // [rows]
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / blocks / H, h = item / blocks % H, kv = h / (H / K);
      const Block block = BlockAt(T, item % blocks);
      const Tensor score_block = Matrix(scores, block.rows(), block.end);
      Matmul(score_block, queries.Rows(b, h, block.begin, block.end),
             keys.Rows(b, kv, 0, block.end), {.transpose_b = true});
      SoftmaxRows(block, scale, scores, inverse_sum, lse_rows + (b * H + h) * T + block.begin);
      Matmul(Matrix(product, block.rows(), D), score_block, values.Rows(b, kv, 0, block.end), {});
      for (int64_t i = 0; i < block.rows(); ++i) {
        float* to = outputs.Row(b, block.begin + i, h);
        for (int64_t d = 0; d < D; ++d) to[d] = product[i * D + d] * inverse_sum[i];
      }
    }
  });
}

void CpuOps::AttentionBackward(const AttentionShape& shape, Tensor dq, Tensor dk, Tensor dv,
                               Tensor dout, Tensor out, Tensor lse, Tensor q, Tensor k,
                               Tensor v) const {
  const int64_t T = shape.sequence, H = shape.heads, K = shape.kv_heads, D = shape.head_dim;
  Check(K > 0 && H % K == 0, "%d query heads over %d key heads", H, K);
  const HeadMajor queries(q, shape, H), keys(k, shape, K), values(v, shape, K);
  const HeadMajor dqueries(dq, shape, H), dkeys(dk, shape, K), dvalues(dv, shape, K);
  const TokenMajor outputs(out, shape), doutputs(dout, shape);
  const float* lse_rows = lse.As<float>();  // [B, H, T]
  const float scale = ScoreScale(shape);

  // The blocks of every query head of (b, kv) add to the same dk and dv: one thread takes them all.
  // Blocks come last to first: the first one taken covers all keys, so it writes instead of adding.
  const auto group = [&](int64_t b, int64_t kv) {
    float* scores = ThreadScratch(kBlockRows * (2 * T + D + 1));  // [rows, end]
    float* dscores = scores + kBlockRows * T;                     // [rows, end]
    float* do_rows = dscores + kBlockRows * T;                    // [rows, D]
    float* delta = do_rows + kBlockRows * D;                      // [rows]
    const int64_t first_head = kv * (H / K);
    for (int64_t h = first_head; h < first_head + H / K; ++h) {
      for (int64_t i = BlockCount(T) - 1; i >= 0; --i) {
        const Block block = BlockAt(T, i);
        const bool add = h != first_head || block.end != T;
        const Tensor q_block = queries.Rows(b, h, block.begin, block.end);
        const Tensor k_block = keys.Rows(b, kv, 0, block.end);
        const Tensor do_block = Matrix(do_rows, block.rows(), D);
        const Tensor s_block = Matrix(scores, block.rows(), block.end);
        const Tensor ds_block = Matrix(dscores, block.rows(), block.end);
        GatherGradient(block, b, h, doutputs, outputs, do_rows, delta);
        Matmul(s_block, q_block, k_block, {.transpose_b = true});
        Matmul(ds_block, do_block, values.Rows(b, kv, 0, block.end), {.transpose_b = true});
        SoftmaxRowsBackward(block, scale, lse_rows + (b * H + h) * T + block.begin, delta, scores,
                            dscores);
        Matmul(dvalues.Rows(b, kv, 0, block.end), s_block, do_block,
               {.transpose_a = true, .accumulate = add});
        Matmul(dqueries.Rows(b, h, block.begin, block.end), ds_block, k_block, {});
        Matmul(dkeys.Rows(b, kv, 0, block.end), ds_block, q_block,
               {.transpose_a = true, .accumulate = add});
      }
    }
  };
  ParallelRows(shape.batch * K, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) group(pair / K, pair % K);
  });
}

}  // namespace twinstream
