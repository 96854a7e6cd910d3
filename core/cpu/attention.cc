// Attention in blocks of query rows: a thread holds the scores of one block of one head, and
// backward recomputes them from the saved log-sum-exp. The scores of a call are a causal triangle,
// whose results are written, or a rectangle, whose results are merged with those of earlier calls.
// Columns beyond a triangle's block's last row are never computed. All arithmetic is float32.
//   S = q k' / sqrt(D)   P = softmax(S)   O = P v
//   dv = P' dO   dP = dO v'   dS = P . (dP - rowsum(dO . O))   dq = dS k / sqrt(D)
//   dk = dS' q / sqrt(D)
#include <algorithm>
#include <cmath>

#include "core/cpu/attention_blocks.h"
#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"

namespace twinstream {
namespace {

// Softmax of unscaled scores, in place but for the division: row i becomes exp(scale (s - max)),
// inverse_sum[i] = 1 / its sum, lse[i] its log-sum-exp.
void SoftmaxRows(const AttentionFrame& frame, const ScoreBlock& block, float* scores,
                 float* inverse_sum, float* lse) {
  for (int64_t i = 0; i < block.rows(); ++i) {
    float* const row = scores + i * frame.score_stride;
    const int64_t visible = block.Visible(i);
    const float largest = VectorMax(visible, [=](int64_t j) { return row[j]; });
    const float sum = VectorSum(visible, [=, scale = frame.scale](int64_t j) {
      return row[j] = Exp(scale * (row[j] - largest));
    });
    std::fill(row + visible, row + block.keys(), 0.0F);
    inverse_sum[i] = 1 / sum;
    lse[i] = frame.scale * largest + std::log(sum);
  }
}

// Unscaled scores become probabilities, and the gradients of the probabilities those of the
// unscaled scores. delta[i] = sum of dO . O of row i.
void SoftmaxRowsBackward(const AttentionFrame& frame, const ScoreBlock& block, const float* lse,
                         const float* delta, float* scores, float* dscores) {
  for (int64_t i = 0; i < block.rows(); ++i) {
    float* const row = scores + i * frame.score_stride;
    float* const drow = dscores + i * frame.score_stride;
    const int64_t visible = block.Visible(i);
    VectorLoop(visible,
               [=, scale = frame.scale, row_lse = lse[i], row_delta = delta[i]](int64_t j) {
                 const float p = Exp(scale * row[j] - row_lse);
                 row[j] = p;
                 drow[j] = p * (drow[j] - row_delta) * scale;
               });
    std::fill(row + visible, row + block.keys(), 0.0F);
    std::fill(drow + visible, drow + block.keys(), 0.0F);
  }
}

// One row's softmax (part / its sum) v over further keys, and their log-sum-exp, taken into the
// row's result over earlier keys.
void MergeRow(const HeadRows& out, int64_t t, const float* part, float inverse_sum, float part_lse,
              float* lse) {
  const float largest = std::max(*lse, part_lse);
  const float merged = largest + std::log(std::exp(*lse - largest) + std::exp(part_lse - largest));
  out.Merge(t, std::exp(*lse - merged), part, std::exp(part_lse - merged) * inverse_sum);
  *lse = merged;
}

void Forward(const AttentionShape& shape, const ScoreArea& area, const AttentionTensors& t) {
  const int64_t T = shape.sequence, H = shape.heads, K = shape.kv_heads;
  Check(K > 0 && H % K == 0, "%d query heads over %d key heads", H, K);
  const HeadRows queries = HeadRows::HeadMajor(t.q, shape, H),
                 keys = HeadRows::HeadMajor(t.k, shape, K),
                 values = HeadRows::HeadMajor(t.v, shape, K),
                 outputs = HeadRows::TokenMajor(t.out, shape);
  float* const lse_rows = t.lse.As<float>();  // [B, H, T]
  const AttentionFrame frame(shape, area);
  const int64_t blocks = area.blocks();
  // Neighbouring items are blocks of one head: a thread packs keys and values once for them.
  ParallelRows(shape.batch * H * blocks, 1, [&](int64_t begin, int64_t end) {
    const int64_t floats =
        2 * frame.panels() + 2 * frame.block_rows() + frame.scores() + 2 * kBlockRows;
    Parts parts(ThreadScratch<AttentionShape>(floats), floats);
    float* const key_panels = parts.Take(frame.panels());
    float* const value_panels = parts.Take(frame.panels());
    float* const q_rows = parts.Take(frame.block_rows());
    float* const out_rows = parts.Take(frame.block_rows());
    float* const scores = parts.Take(frame.scores());
    float* const inverse_sum = parts.Take(kBlockRows);
    float* const block_lse = parts.Take(kBlockRows);
    int64_t packed = -1;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / blocks / H, h = item / blocks % H, kv = h / (H / K);
      if (packed != b * K + kv) {
        PackTransposed(frame, keys.Of(b, kv), key_panels);
        PackRows(frame, values.Of(b, kv), value_panels);
        packed = b * K + kv;
      }
      const ScoreBlock block = area.At(item % blocks);
      ReadBlock(frame, block, queries.Of(b, h), q_rows);
      Scores(frame, block, q_rows, key_panels, scores);
      SoftmaxRows(frame, block, scores, inverse_sum, block_lse);
      SumOverKeys(frame, block, scores, value_panels, {.data = out_rows, .stride = frame.padded_D});
      const HeadRows out = outputs.Of(b, h);
      for (int64_t i = 0; i < block.rows(); ++i) {
        const float* const row = out_rows + i * frame.padded_D;
        float* const lse = lse_rows + (b * H + h) * T + block.begin + i;
        if (area.form == ScoreForm::kRectangle) {
          MergeRow(out, block.begin + i, row, inverse_sum[i], block_lse[i], lse);
        } else {
          out.Write(block.begin + i, row, inverse_sum[i]);
          *lse = block_lse[i];
        }
      }
    }
  });
}

// Gradients of one key head's keys or values over the area: sums [keys, padded D].
void BeginSums(const AttentionFrame& frame, const HeadRows& gradients, float* sums) {
  std::fill_n(sums, frame.keys * frame.padded_D, 0.0F);
  if (frame.area.form == ScoreForm::kTriangle) return;
  for (int64_t i = 0; i < frame.keys; ++i) gradients.Read(frame.key(i), sums + i * frame.padded_D);
}

void EndSums(const AttentionFrame& frame, const HeadRows& gradients, const float* sums) {
  for (int64_t i = 0; i < frame.keys; ++i) {
    gradients.Write(frame.key(i), sums + i * frame.padded_D, 1);
  }
}

// The gradients of one key/value head, and of all query heads that look at it.
class BackwardGroup {
 public:
  BackwardGroup(const AttentionFrame& frame, const AttentionShape& shape, const AttentionTensors& t,
                const AttentionGradients& g)
      : frame_(frame),
        H_(shape.heads),
        K_(shape.kv_heads),
        T_(shape.sequence),
        queries_(HeadRows::HeadMajor(t.q, shape, H_)),
        keys_(HeadRows::HeadMajor(t.k, shape, K_)),
        values_(HeadRows::HeadMajor(t.v, shape, K_)),
        outputs_(HeadRows::TokenMajor(t.out, shape)),
        dqueries_(HeadRows::HeadMajor(g.dq, shape, H_)),
        dkeys_(HeadRows::HeadMajor(g.dk, shape, K_)),
        dvalues_(HeadRows::HeadMajor(g.dv, shape, K_)),
        doutputs_(HeadRows::TokenMajor(g.dout, shape)),
        lse_(t.lse.As<float>()) {
    Check(K_ > 0 && H_ % K_ == 0, "%d query heads over %d key heads", H_, K_);
  }

  void Run(int64_t b, int64_t kv) const {
    const int64_t floats =
        5 * frame_.panels() + 3 * frame_.block_rows() + 2 * frame_.scores() + kBlockRows;
    Parts parts(ThreadScratch<AttentionShape>(floats), floats);
    const Memory memory = {.key_columns = parts.Take(frame_.panels()),
                           .value_columns = parts.Take(frame_.panels()),
                           .key_rows = parts.Take(frame_.panels()),
                           .dkeys = parts.Take(frame_.panels()),
                           .dvalues = parts.Take(frame_.panels()),
                           .q = parts.Take(frame_.block_rows()),
                           .dout = parts.Take(frame_.block_rows()),
                           .dq = parts.Take(frame_.block_rows()),
                           .scores = parts.Take(frame_.scores()),
                           .dscores = parts.Take(frame_.scores()),
                           .delta = parts.Take(kBlockRows)};
    PackTransposed(frame_, keys_.Of(b, kv), memory.key_columns);
    PackTransposed(frame_, values_.Of(b, kv), memory.value_columns);
    PackRows(frame_, keys_.Of(b, kv), memory.key_rows);
    BeginSums(frame_, dkeys_.Of(b, kv), memory.dkeys);
    BeginSums(frame_, dvalues_.Of(b, kv), memory.dvalues);
    for (int64_t h = kv * (H_ / K_); h < (kv + 1) * (H_ / K_); ++h) {
      for (int64_t i = 0; i < frame_.area.blocks(); ++i) RunBlock(b, h, frame_.area.At(i), memory);
    }
    EndSums(frame_, dkeys_.Of(b, kv), memory.dkeys);
    EndSums(frame_, dvalues_.Of(b, kv), memory.dvalues);
  }

 private:
  struct Memory {
    float *key_columns, *value_columns;  // PackTransposed
    float* key_rows;                     // PackRows
    float *dkeys, *dvalues;              // [keys, padded D]
    float *q, *dout, *dq;                // [block rows, padded D]
    float *scores, *dscores;
    float* delta;  // [block rows]
  };

  void RunBlock(int64_t b, int64_t h, const ScoreBlock& block, const Memory& memory) const {
    const HeadRows out = outputs_.Of(b, h), dq = dqueries_.Of(b, h);
    ReadBlock(frame_, block, queries_.Of(b, h), memory.q);
    ReadBlock(frame_, block, doutputs_.Of(b, h), memory.dout);
    for (int64_t i = 0; i < block.rows(); ++i) {
      memory.delta[i] = out.Product(block.begin + i, memory.dout + i * frame_.padded_D);
    }
    Scores(frame_, block, memory.q, memory.key_columns, memory.scores);
    Scores(frame_, block, memory.dout, memory.value_columns, memory.dscores);
    SoftmaxRowsBackward(frame_, block, lse_ + (b * H_ + h) * T_ + block.begin, memory.delta,
                        memory.scores, memory.dscores);
    AddOverRows(frame_, block, memory.scores, memory.dout, memory.dvalues);
    AddOverRows(frame_, block, memory.dscores, memory.q, memory.dkeys);
    const bool add = frame_.area.form == ScoreForm::kRectangle;
    if (add) ReadBlock(frame_, block, dq, memory.dq);
    SumOverKeys(frame_, block, memory.dscores, memory.key_rows,
                {.data = memory.dq, .stride = frame_.padded_D, .add = add});
    for (int64_t i = 0; i < block.rows(); ++i) {
      dq.Write(block.begin + i, memory.dq + i * frame_.padded_D, 1);
    }
  }

  const AttentionFrame& frame_;
  int64_t H_, K_, T_;
  HeadRows queries_, keys_, values_, outputs_, dqueries_, dkeys_, dvalues_, doutputs_;
  const float* lse_;  // [B, H, T]
};

// The blocks of all query heads of a group add to the same dk and dv: one thread takes them all.
void Backward(const AttentionShape& shape, const ScoreArea& area, const AttentionTensors& t,
              const AttentionGradients& g) {
  const AttentionFrame frame(shape, area);
  const BackwardGroup group(frame, shape, t, g);
  ParallelRows(shape.batch * shape.kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      group.Run(pair / shape.kv_heads, pair % shape.kv_heads);
    }
  });
}

}  // namespace

void CpuOps::AttentionForward(const AttentionShape& shape, const AttentionTensors& t) const {
  Forward(shape, ScoreArea::Triangle(shape.sequence), t);
}

void CpuOps::AttentionBackward(const AttentionShape& shape, const AttentionTensors& t,
                               const AttentionGradients& g) const {
  Backward(shape, ScoreArea::Triangle(shape.sequence), t, g);
}

void CpuOps::AttentionMergeForward(const AttentionShape& shape, const AttentionRectangle& rectangle,
                                   const AttentionTensors& t) const {
  Forward(shape, ScoreArea::Rectangle(rectangle, shape.sequence), t);
}

void CpuOps::AttentionMergeBackward(const AttentionShape& shape,
                                    const AttentionRectangle& rectangle, const AttentionTensors& t,
                                    const AttentionGradients& g) const {
  Backward(shape, ScoreArea::Rectangle(rectangle, shape.sequence), t, g);
}

}  // namespace twinstream
