// Ops: every mathematical operation of the project, on one device. Letters: N rows (tokens), C
// width of a residual stream, B batch, T sequence, H query heads, K key/value heads, D head_dim, F
// ffn, V vocabulary. Tensors are contiguous; outputs may not overlap inputs unless a comment allows
// it. Errors of shape are programmers' errors: Check.
// Activations (streams, h, o, qkv, q, k, v, up, embedded tokens, attention's out, rows of
// experts) and their gradients are float32 or, all of an operation's, bf16. So are the operands and
// the result of a product, each for itself. All else is float32 unless a comment says otherwise:
// weights of norms, gradients of weights, scales, logits and statistics; and so is all arithmetic:
// a bf16 result is rounded once, to nearest; a denormal number may become zero.
#pragma once

#include <compare>
#include <cstdint>

#include "absl/types/span.h"
#include "core/tensor.h"

namespace twinstream {

struct MatmulOptions {
  bool transpose_a = false;  // a is stored [K, M]
  bool transpose_b = false;  // b is stored [N, K]
  bool accumulate = false;   // out += a b instead of out = a b
  // M, or with transpose_a K, is another number in every call, as GroupedMatmul's for each group:
  // nothing is prepared for that number alone.
  bool varying = false;

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the generated 0 for a pointer
  friend auto operator<=>(const MatmulOptions&, const MatmulOptions&) = default;
};

// How the input h of a residual block comes from the streams. x is the normalised, y the identity
// stream; sources: SiameseNorm (arXiv 2602.08064) section 3 and the papers of the other schemes.
//   base = base_norm ? N_x(x) : x                      what the block's write adds to
//   u    = [x: none | base | N_x(x) | w_x . x] + [y ? N_y(y)]
//   h    = input_norm ? N_in(u) : u
// N(v) = w . v / sqrt(mean(v^2) + eps), statistics in float32.
struct ResidualRead {
  enum class X { kNone, kBase, kNorm, kScale };
  X x = X::kNone;
  bool base_norm = false;  // not together with X::kNorm or X::kScale: one weight w_x per read
  bool y = false;
  bool input_norm = false;
};

// How the output o of a residual block changes the streams.
//   p = output_norm ? N_out(o) : o
//   x <- base_gain * base + x_gain * p
//   y <- y (kKeep) | y + p (kAdd) | base + p (kSet)     kKeep without a y stream: nothing
struct ResidualWrite {
  enum class Y { kKeep, kAdd, kSet };
  float base_gain = 1;
  float x_gain = 1;
  Y y = Y::kKeep;
  bool output_norm = false;
};

// The row-local work between two residual blocks in one pass: the write of the block before, then
// the read of the block after. Either may be absent (null): a stage starts with a read alone and
// ends with a write alone. The streams are stored as x, y before the read's base_norm; the base is
// rebuilt from them and the saved scales.
struct ResidualSite {
  float eps = 1e-5F;
  const ResidualRead* read_before =
      nullptr;  // the read of the block that wrote; its base is the write's base
  const ResidualWrite* write = nullptr;  // null with read_before null
  const ResidualRead* read = nullptr;
};

// Rows of ResidualForward's `scales`: 1 / sqrt(mean(v^2) + eps) of each norm that the site took.
enum ResidualScale {
  kScaleX = 0,
  kScaleY = 1,
  kScaleInput = 2,
  kScaleOutput = 3,
  kResidualScales = 4
};

struct ResidualForwardTensors {
  // Read by the write. x, y: streams stored by the site before [N, C] (y absent in one-stream
  // schemes).
  Tensor x, y;
  Tensor o;                // [N, C] output of the block before; absent without a write
  Tensor x_weight_before;  // [C] w_x of read_before when it has base_norm
  Tensor scales_before;    // [4, N] of the site before
  Tensor output_weight;    // [C] when write->output_norm
  // Written by the write; equal to x, y (or absent) when there is no write. May be the same memory
  // as x, y.
  Tensor x_out, y_out;
  // The read. x_weight: w_x of base_norm, X::kNorm or X::kScale.
  Tensor x_weight, y_weight, input_weight;  // [C]
  Tensor scales;                            // [4, N]: written
  Tensor h;                                 // [N, C]: written
};

struct ResidualBackwardTensors {
  Tensor dx, dy;  // [N, C], in place. In: gradients of the read's base and of y (of x_out, y_out
                  // without a read). Out: gradients of the write's base and of the y before (of x,
                  // y without a write).
  Tensor dh;      // [N, C] gradient of h; absent without a read
  Tensor x, y;    // the streams this site stored (x_out, y_out), from which it read
  Tensor x_weight, y_weight, input_weight, scales;
  Tensor dx_weight, dy_weight, dinput_weight;  // [C], accumulated
  Tensor o, output_weight, doutput_weight;     // output_norm only (its scale is in `scales`)
  Tensor d_o;  // [N, C] gradient of o: written; absent without a write. May be the same memory as x
               // or dh.
  Tensor h;  // [N, C] what the forward wrote, again: written; absent where nobody asks for it. May
             // be the same memory as y.
};

struct AttentionShape {
  int64_t batch = 0, sequence = 0, heads = 0, kv_heads = 0,
          head_dim = 0;  // B T H K D, of this rank
  int64_t qkv_columns() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t rows() const { return batch * sequence; }

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the generated 0 for a pointer
  friend auto operator<=>(const AttentionShape&, const AttentionShape&) = default;
};

// Tokens [query_begin, query_end) of one part of a sequence, all of which see the keys of tokens
// [key_begin, key_end), at least one, of an earlier part.
struct AttentionRectangle {
  int64_t query_begin = 0, query_end = 0, key_begin = 0, key_end = 0;
};

struct AttentionTensors {
  Tensor q, k, v;  // [B, H|K, T, D]
  Tensor out;      // [B*T, H*D]: heads side by side
  Tensor lse;      // [B, H, T]: log-sum-exp of the scaled scores
};

struct AttentionGradients {
  Tensor dq, dk, dv;  // as q, k, v
  Tensor dout;        // as out
};

struct QkvTensors {
  Tensor qkv;                     // [B*T, (H + 2K) D]: q heads, k heads, v heads
  Tensor q, k, v;                 // [B, H|K, T, D]
  Tensor rope;                    // [T, D]: cosines of D/2 angles, then their sines
  Tensor q_norm, k_norm, v_norm;  // [D] each or absent
  Tensor scales;  // [B*T, H + 2K]: 1/rms per head, where a norm exists; absent without norms
};

// N tokens choose k of E experts each (OLMoE, arXiv 2409.02060). R = N k routed rows, in the order
// of the experts and, for each of them, of the tokens. All float32, whatever the tokens' dtype.
struct RoutingTensors {
  Tensor probabilities;  // [N, E]: softmax of the router's logits
  Tensor lse;            // [N]: log-sum-exp of the logits
  Tensor experts;  // [N, k] i32: the likeliest, in descending order; of equals the lower id first
  Tensor weights;  // [N, k]: their probabilities, not renormalised
  Tensor rows;     // [N, k] i32: the routed row of each
  Tensor choices;  // [R] i32: n k + j of each routed row, the inverse of `rows`
  Tensor counts;   // [E] i32: routed rows of each expert
  // [2 E + 1] f64, sums over the tokens: n_e (tokens of each expert), P_e (probabilities), lse^2.
  Tensor statistics;
};

// Factors of the router's auxiliary losses in the gradient, coefficients included.
struct RouterLossScales {
  float load_balance = 0, router_z = 0;
};

// Factors in the gradient of a token's loss: of logsumexp^2, and of everything.
struct TokenLossScales {
  float z_loss = 0, total = 1;
};

struct AdamWOptions {
  float learning_rate = 0, beta1 = 0, beta2 = 0, eps = 0;
  float bias_correction1 = 1, bias_correction2 = 1;  // 1 - beta^updates
  float gradient_scale = 1;                          // clipping factor
};

// What AdamW does with one weight: tensors of the same element count, any shapes.
struct AdamWItem {
  Tensor weight, m, v;  // in place
  Tensor gradient;
  Tensor rounded;  // bf16, written: the new weight; absent where nobody computes in bf16
  float weight_decay = 0;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // out = a b, or out += a b. a: [M, K], b: [K, N], out: [M, N].
  virtual void Matmul(Tensor out, Tensor a, Tensor b, MatmulOptions options) const = 0;
  // A product for each of G groups: of the first rows_of_group[0] rows (in host memory), of the
  // rows_of_group[1] after them, and so on; any may be none. Each group has a matrix of its own,
  // and these lie one below the other:
  //   rows a [R, K], matrices b [G K, N] or with transpose_b [G N, K]: rows of out [R, N] = a b
  //   transpose_a: rows a [R, M] and b [R, N]: matrices out [G M, N] = a b, a sum over the rows
  // Never both transposes; `varying` is understood. R may be more than all groups have: rows behind
  // them are left alone.
  virtual void GroupedMatmul(Tensor out, Tensor a, Tensor b,
                             absl::Span<const int64_t> rows_of_group,
                             MatmulOptions options) const = 0;

  virtual void ResidualForward(const ResidualSite& site, const ResidualForwardTensors& t) const = 0;
  virtual void ResidualBackward(const ResidualSite& site,
                                const ResidualBackwardTensors& t) const = 0;

  // Head norms, then rotary embedding (element j of the first half of a head against j of the
  // second, v not rotated), then head-major layout, in one pass. Backward: t.q, t.k, t.v hold
  // gradients [B, H|K, T, D]; dqkv is written and may be the same memory as
  // t.qkv; the norm gradients [D] are accumulated (absent where the norm is).
  virtual void QkvForward(const AttentionShape& shape, float eps, const QkvTensors& t) const = 0;
  virtual void QkvBackward(const AttentionShape& shape, const QkvTensors& t, Tensor dqkv,
                           Tensor dq_norm, Tensor dk_norm, Tensor dv_norm) const = 0;

  // Causal softmax(q k' / sqrt(D)) v, query head h with key head h / (H / K). Where a device
  // multiplies bf16, probabilities and gradients of scores are rounded to it first. Never holds T x
  // T scores: some rows of a head at a time. Of bf16 operands t.out, and g.dq, g.dk, g.dv, may be
  // float32 all the same: for those who add to them in further calls. Forward writes t.out and
  // t.lse; backward reads them and writes g.dq, g.dk, g.dv.
  virtual void AttentionForward(const AttentionShape& shape, const AttentionTensors& t) const = 0;
  virtual void AttentionBackward(const AttentionShape& shape, const AttentionTensors& t,
                                 const AttentionGradients& g) const = 0;
  // The same where k and v are another part of the sequence, for one rectangle of scores, without a
  // mask. Forward takes it into out and lse, which hold the result over other keys (ring attention,
  // arXiv 2310.01889); backward takes those of all keys and adds to dq, dk, dv.
  virtual void AttentionMergeForward(const AttentionShape& shape,
                                     const AttentionRectangle& rectangle,
                                     const AttentionTensors& t) const = 0;
  virtual void AttentionMergeBackward(const AttentionShape& shape,
                                      const AttentionRectangle& rectangle,
                                      const AttentionTensors& t,
                                      const AttentionGradients& g) const = 0;

  // up: [N, 2F], value columns then gate columns. out = silu(gate) . value: [N, F].
  virtual void SwiGluForward(Tensor out, Tensor up) const = 0;
  // dup may be the same memory as up.
  virtual void SwiGluBackward(Tensor dup, Tensor dout, Tensor up) const = 0;

  // t.probabilities hold the logits on entry; everything in t is written.
  virtual void RouteTokens(const RoutingTensors& t) const = 0;
  // The gradient of the logits takes the place of t.probabilities. weighted: [R], of each routed
  // row its weight times that weight's gradient. To it come the gradients of the auxiliary losses,
  // times `scales`, over the N' = sum n_e / k tokens of t.statistics, which may be of several
  // ranks:
  //   load balance  E sum_e (n_e / (N' k)) (P_e / N'),    router z  sum lse^2 / N'
  virtual void RouterBackward(const RoutingTensors& t, Tensor weighted,
                              const RouterLossScales& scales) const = 0;
  // losses: [2] f64 += load balance, router z as above; loads: [E] f64 += n_e. top_k: k.
  virtual void AddRouterLosses(Tensor losses, Tensor loads, Tensor statistics,
                               int64_t top_k) const = 0;
  // out[r] = in[choices[r] / k], times weights[choices[r]] unless `weights` is absent. out: [R, C];
  // in: [N, C]; weights: [N, k].
  virtual void GatherRows(Tensor out, Tensor in, Tensor choices, Tensor weights) const = 0;
  // out[n] = sum_j in[rows[n, j]], times weights[n, j] unless `weights` is absent, in ascending j.
  // out: [N, C]; in: [R, C]; rows: [N, k] i32.
  virtual void CombineRows(Tensor out, Tensor in, Tensor rows, Tensor weights) const = 0;
  // out[r] = <a[r], b[r]>. a, b: [R, C].
  virtual void RowProducts(Tensor out, Tensor a, Tensor b) const = 0;

  // out[n] = table[tokens[n] - begin], or zero where the token is not one of the table's rows.
  // tokens: [N] i32; table: [rows, C]: ids begin .. begin + rows - 1.
  virtual void EmbeddingForward(Tensor out, Tensor tokens, Tensor table, int64_t begin) const = 0;
  // dtable[tokens[n] - begin] += dout[n], in ascending n: the same bits on any number of threads.
  virtual void EmbeddingBackward(Tensor dtable, Tensor tokens, Tensor dout,
                                 int64_t begin) const = 0;

  // Cross-entropy over a vocabulary that may be split over ranks, in three parts.
  // 1. Of this rank's logits [N, columns] (ids begin ..): statistics [N, 3] = max, sum of exp(logit
  // - max), logit of
  //    the target (0 when it is another rank's). columns may be 0: max is -inf, sum 0. targets: [N]
  //    i32.
  virtual void LogitStatistics(Tensor statistics, Tensor logits, Tensor targets,
                               int64_t begin) const = 0;
  // 2. gathered: [R, N, 3] of R ranks. lse [N] is written; sums [2] f64 += over rows with target >=
  // 0, in order:
  //    lse - target logit, and lse^2.
  virtual void MergeLogitStatistics(Tensor lse, Tensor sums, Tensor gathered,
                                    Tensor targets) const = 0;
  // 3. gradient, like logits [N, columns] in shape but an activation in dtype:
  //    total * (softmax * (1 + 2 z_loss lse) - onehot(target)); 0 where target < 0.
  // May be the same memory as logits when it is float32.
  virtual void LogitGradient(Tensor gradient, Tensor logits, Tensor targets, Tensor lse,
                             int64_t begin, TokenLossScales scales) const = 0;

  // AdamW in PyTorch's order. Together or in several calls, every item gets the same bits.
  virtual void AdamW(const AdamWOptions& options, absl::Span<const AdamWItem> items) const = 0;

  // sums: [tensors] f64 <- of each tensor its sum of squares: the same bits on any number of
  // threads, and whatever other tensors are in the call.
  virtual void SumsOfSquares(Tensor sums, absl::Span<const Tensor> tensors) const = 0;

  virtual void Add(Tensor out, Tensor a) const = 0;        // out += a; of one dtype
  virtual void Cast(Tensor out, Tensor in) const = 0;      // out = in: float32 or bf16, to nearest
  virtual void Scale(Tensor out, float factor) const = 0;  // out *= factor
  virtual void Zero(Tensor out) const = 0;                 // any dtype
};

}  // namespace twinstream
