// Attention in blocks of query rows: a thread holds the scores of one block of one head, and
// backward recomputes them from the saved log-sum-exp. The scores of a call are a causal triangle,
// whose results are written, or a rectangle, whose results are merged with those of earlier calls.
// Columns beyond a triangle's block's last row are never computed. All arithmetic is float32, but
// where there are products of bf16 P and dS are rounded to it before they are multiplied.
//   S = q k' / sqrt(D)   P = softmax(S)   O = P v
//   dv = P' dO   dP = dO v'   dS = P . (dP - rowsum(dO . O))   dq = dS k / sqrt(D)
//   dk = dS' q / sqrt(D)
#include <algorithm>
#include <cmath>

#include "core/cpu/attention_blocks.h"
#include "core/cpu/attention_softmax.h"
#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

// One row's softmax (part / its sum) v over further keys, and their log-sum-exp, taken into the
// row's result over earlier keys.
void MergeRow(const HeadRows& out, int64_t t, const float* part, float inverse_sum, float part_lse,
              float* lse) {
  const float largest = std::max(*lse, part_lse);
  const float merged = largest + std::log(std::exp(*lse - largest) + std::exp(part_lse - largest));
  out.Merge(t, std::exp(*lse - merged), part, std::exp(part_lse - merged) * inverse_sum);
  *lse = merged;
}

template <class Factor>
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
    // Enough for either factor.
    const int64_t floats =
        2 * frame.panels() + 2 * frame.block_rows() + 2 * frame.scores() + 2 * kBlockRows;
    Parts parts(ThreadScratch<AttentionShape>(floats), floats);
    auto* const key_panels = parts.Take<Factor>(frame.panels() / kFactorDepth<Factor>);
    auto* const value_panels = parts.Take<Factor>(frame.panels() / kFactorDepth<Factor>);
    auto* const q_rows = parts.Take<ElementOf<Factor>>(frame.block_rows());
    auto* const out_rows = parts.Take<float>(frame.block_rows());
    auto* const scores = parts.Take<float>(frame.scores());
    auto* const p = TakeRounded<Factor>(frame, parts, scores);
    auto* const inverse_sum = parts.Take<float>(kBlockRows);
    auto* const block_lse = parts.Take<float>(kBlockRows);
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
      Scores<Factor>(frame, block, q_rows, key_panels, scores);
      SoftmaxRows<Factor>(frame, block, scores, p, inverse_sum, block_lse);
      SumOverKeys<Factor>(frame, block, p, value_panels,
                          {.data = out_rows, .stride = frame.padded_D});
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
template <class Factor>
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
    // Enough for either factor.
    const int64_t floats =
        5 * frame_.panels() + 5 * frame_.block_rows() + 4 * frame_.scores() + kBlockRows;
    Parts parts(ThreadScratch<AttentionShape>(floats), floats);
    const int64_t panels = frame_.panels() / kFactorDepth<Factor>,
                  block_panels = frame_.block_rows() / kFactorDepth<Factor>;
    const Memory memory = {.key_columns = parts.Take<Factor>(panels),
                           .value_columns = parts.Take<Factor>(panels),
                           .key_rows = parts.Take<Factor>(panels),
                           .dkeys = parts.Take<float>(frame_.panels()),
                           .dvalues = parts.Take<float>(frame_.panels()),
                           .q_rows = parts.Take<ElementOf<Factor>>(frame_.block_rows()),
                           .dout_rows = parts.Take<ElementOf<Factor>>(frame_.block_rows()),
                           .q_panels = parts.Take<Factor>(block_panels),
                           .dout_panels = parts.Take<Factor>(block_panels),
                           .dq = parts.Take<float>(frame_.block_rows()),
                           .operands = ScoreOperands<Factor>(frame_, parts),
                           .delta = parts.Take<float>(kBlockRows)};
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
    Factor *key_columns, *value_columns;   // PackTransposed
    Factor* key_rows;                      // PackRows
    float *dkeys, *dvalues;                // [keys, padded D]
    ElementOf<Factor>*q_rows, *dout_rows;  // ReadBlock
    Factor *q_panels, *dout_panels;        // PackBlock
    float* dq;                             // [block rows, padded D]
    ScoreOperands<Factor> operands;
    float* delta;  // [block rows]
  };

  void RunBlock(int64_t b, int64_t h, const ScoreBlock& block, const Memory& memory) const {
    const HeadRows q = queries_.Of(b, h), out = outputs_.Of(b, h), dout = doutputs_.Of(b, h),
                   dq = dqueries_.Of(b, h);
    const ScoreOperands<Factor>& operands = memory.operands;
    ReadBlock(frame_, block, q, memory.q_rows);
    ReadBlock(frame_, block, dout, memory.dout_rows);
    PackBlock(frame_, block, q, memory.q_panels);
    PackBlock(frame_, block, dout, memory.dout_panels);
    for (int64_t i = 0; i < block.rows(); ++i) {
      memory.delta[i] = out.Product(block.begin + i, dout);
    }
    Scores(frame_, block, memory.q_rows, memory.key_columns, operands.scores);
    Scores(frame_, block, memory.dout_rows, memory.value_columns, operands.dscores);
    SoftmaxRowsBackward(frame_, block, lse_ + (b * H_ + h) * T_ + block.begin, memory.delta,
                        operands);
    AddOverRows(frame_, block, operands.p_columns, memory.dout_panels, memory.dvalues);
    AddOverRows(frame_, block, operands.ds_columns, memory.q_panels, memory.dkeys);
    const bool add = frame_.area.form == ScoreForm::kRectangle;
    if (add) ReadBlock(frame_, block, dq, memory.dq);
    SumOverKeys(frame_, block, operands.ds_rows, memory.key_rows,
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
template <class Factor>
void Backward(const AttentionShape& shape, const ScoreArea& area, const AttentionTensors& t,
              const AttentionGradients& g) {
  const AttentionFrame frame(shape, area);
  const BackwardGroup<Factor> group(frame, shape, t, g);
  ParallelRows(shape.batch * shape.kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      group.Run(pair / shape.kv_heads, pair % shape.kv_heads);
    }
  });
}

// f of the factors of products of q, k and v.
template <class F>
void WithFactor(const AttentionTensors& t, F f) {
  if (t.q.dtype() == DType::kBF16) return f(std::type_identity<BFloat16Factor>());
  return f(std::type_identity<float>());
}

void RunForward(const AttentionShape& shape, const ScoreArea& area, const AttentionTensors& t) {
  WithFactor(t, [&]<class Factor>(std::type_identity<Factor>) { Forward<Factor>(shape, area, t); });
}

void RunBackward(const AttentionShape& shape, const ScoreArea& area, const AttentionTensors& t,
                 const AttentionGradients& g) {
  WithFactor(
      t, [&]<class Factor>(std::type_identity<Factor>) { Backward<Factor>(shape, area, t, g); });
}

}  // namespace

void CpuOps::AttentionForward(const AttentionShape& shape, const AttentionTensors& t) const {
  RunForward(shape, ScoreArea::Triangle(shape.sequence), t);
}

void CpuOps::AttentionBackward(const AttentionShape& shape, const AttentionTensors& t,
                               const AttentionGradients& g) const {
  RunBackward(shape, ScoreArea::Triangle(shape.sequence), t, g);
}

void CpuOps::AttentionMergeForward(const AttentionShape& shape, const AttentionRectangle& rectangle,
                                   const AttentionTensors& t) const {
  RunForward(shape, ScoreArea::Rectangle(rectangle, shape.sequence), t);
}

void CpuOps::AttentionMergeBackward(const AttentionShape& shape,
                                    const AttentionRectangle& rectangle, const AttentionTensors& t,
                                    const AttentionGradients& g) const {
  RunBackward(shape, ScoreArea::Rectangle(rectangle, shape.sequence), t, g);
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
