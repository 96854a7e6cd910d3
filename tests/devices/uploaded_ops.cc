#include "tests/devices/uploaded_ops.h"

#include <utility>
#include <vector>

#include "tests/testing/upload.h"

namespace twinstream::testing {
namespace {

std::vector<Tensor*> TensorsOf(AttentionTensors& t) { return {&t.q, &t.k, &t.v, &t.out, &t.lse}; }
std::vector<Tensor*> TensorsOf(AttentionGradients& t) { return {&t.dq, &t.dk, &t.dv, &t.dout}; }
std::vector<Tensor*> TensorsOf(QkvTensors& t) {
  return {&t.qkv, &t.q, &t.k, &t.v, &t.rope, &t.q_norm, &t.k_norm, &t.v_norm, &t.scales};
}
std::vector<Tensor*> TensorsOf(RoutingTensors& t) {
  return {&t.probabilities, &t.lse,     &t.experts, &t.weights,
          &t.rows,          &t.choices, &t.counts,  &t.statistics};
}
std::vector<Tensor*> TensorsOf(ResidualForwardTensors& t) {
  return {&t.x,     &t.y,     &t.o,        &t.x_weight_before, &t.scales_before, &t.output_weight,
          &t.x_out, &t.y_out, &t.x_weight, &t.y_weight,        &t.input_weight,  &t.scales,
          &t.h};
}
std::vector<Tensor*> TensorsOf(ResidualBackwardTensors& t) {
  return {&t.dx,
          &t.dy,
          &t.dh,
          &t.x,
          &t.y,
          &t.x_weight,
          &t.y_weight,
          &t.input_weight,
          &t.scales,
          &t.dx_weight,
          &t.dy_weight,
          &t.dinput_weight,
          &t.o,
          &t.output_weight,
          &t.doutput_weight,
          &t.d_o,
          &t.h};
}

std::vector<Tensor*> Together(std::vector<Tensor*> a, const std::vector<Tensor*>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

void UploadedOps::Matmul(Tensor out, Tensor a, Tensor b, MatmulOptions options) const {
  Upload upload(device_);
  upload.Add({&out, &a, &b});
  ops_.Matmul(out, a, b, options);
}

void UploadedOps::GroupedMatmul(Tensor out, Tensor a, Tensor b,
                                absl::Span<const int64_t> rows_of_group,
                                MatmulOptions options) const {
  Upload upload(device_);
  upload.Add({&out, &a, &b});
  ops_.GroupedMatmul(out, a, b, rows_of_group, options);
}

void UploadedOps::ResidualForward(const ResidualSite& site,
                                  const ResidualForwardTensors& t_in) const {
  ResidualForwardTensors t = t_in;
  Upload upload(device_);
  upload.Add(TensorsOf(t));
  ops_.ResidualForward(site, t);
}

void UploadedOps::ResidualBackward(const ResidualSite& site,
                                   const ResidualBackwardTensors& t_in) const {
  ResidualBackwardTensors t = t_in;
  Upload upload(device_);
  upload.Add(TensorsOf(t));
  ops_.ResidualBackward(site, t);
}

void UploadedOps::QkvForward(const AttentionShape& shape, float eps, const QkvTensors& t_in) const {
  QkvTensors t = t_in;
  Upload upload(device_);
  upload.Add(TensorsOf(t));
  ops_.QkvForward(shape, eps, t);
}

void UploadedOps::QkvBackward(const AttentionShape& shape, const QkvTensors& t_in, Tensor dqkv,
                              Tensor dq_norm, Tensor dk_norm, Tensor dv_norm) const {
  QkvTensors t = t_in;
  Upload upload(device_);
  upload.Add(Together(TensorsOf(t), {&dqkv, &dq_norm, &dk_norm, &dv_norm}));
  ops_.QkvBackward(shape, t, dqkv, dq_norm, dk_norm, dv_norm);
}

void UploadedOps::AttentionForward(const AttentionShape& shape,
                                   const AttentionTensors& t_in) const {
  AttentionTensors t = t_in;
  Upload upload(device_);
  upload.Add(TensorsOf(t));
  ops_.AttentionForward(shape, t);
}

void UploadedOps::AttentionBackward(const AttentionShape& shape, const AttentionTensors& t_in,
                                    const AttentionGradients& g_in) const {
  AttentionTensors t = t_in;
  AttentionGradients g = g_in;
  Upload upload(device_);
  upload.Add(Together(TensorsOf(t), TensorsOf(g)));
  ops_.AttentionBackward(shape, t, g);
}

void UploadedOps::AttentionMergeForward(const AttentionShape& shape,
                                        const AttentionRectangle& rectangle,
                                        const AttentionTensors& t_in) const {
  AttentionTensors t = t_in;
  Upload upload(device_);
  upload.Add(TensorsOf(t));
  ops_.AttentionMergeForward(shape, rectangle, t);
}

void UploadedOps::AttentionMergeBackward(const AttentionShape& shape,
                                         const AttentionRectangle& rectangle,
                                         const AttentionTensors& t_in,
                                         const AttentionGradients& g_in) const {
  AttentionTensors t = t_in;
  AttentionGradients g = g_in;
  Upload upload(device_);
  upload.Add(Together(TensorsOf(t), TensorsOf(g)));
  ops_.AttentionMergeBackward(shape, rectangle, t, g);
}

void UploadedOps::SwiGluForward(Tensor out, Tensor up) const {
  Upload upload(device_);
  upload.Add({&out, &up});
  ops_.SwiGluForward(out, up);
}

void UploadedOps::SwiGluBackward(Tensor dup, Tensor dout, Tensor up) const {
  Upload upload(device_);
  upload.Add({&dup, &dout, &up});
  ops_.SwiGluBackward(dup, dout, up);
}

void UploadedOps::RouteTokens(const RoutingTensors& t_in) const {
  RoutingTensors t = t_in;
  Upload upload(device_);
  upload.Add(TensorsOf(t));
  ops_.RouteTokens(t);
}

void UploadedOps::RouterBackward(const RoutingTensors& t_in, Tensor weighted,
                                 const RouterLossScales& scales) const {
  RoutingTensors t = t_in;
  Upload upload(device_);
  upload.Add(Together(TensorsOf(t), {&weighted}));
  ops_.RouterBackward(t, weighted, scales);
}

void UploadedOps::AddRouterLosses(Tensor losses, Tensor loads, Tensor statistics,
                                  int64_t top_k) const {
  Upload upload(device_);
  upload.Add({&losses, &loads, &statistics});
  ops_.AddRouterLosses(losses, loads, statistics, top_k);
}

void UploadedOps::GatherRows(Tensor out, Tensor in, Tensor choices, Tensor weights) const {
  Upload upload(device_);
  upload.Add({&out, &in, &choices, &weights});
  ops_.GatherRows(out, in, choices, weights);
}

void UploadedOps::CombineRows(Tensor out, Tensor in, Tensor rows, Tensor weights) const {
  Upload upload(device_);
  upload.Add({&out, &in, &rows, &weights});
  ops_.CombineRows(out, in, rows, weights);
}

void UploadedOps::RowProducts(Tensor out, Tensor a, Tensor b) const {
  Upload upload(device_);
  upload.Add({&out, &a, &b});
  ops_.RowProducts(out, a, b);
}

void UploadedOps::EmbeddingForward(Tensor out, Tensor tokens, Tensor table, int64_t begin) const {
  Upload upload(device_);
  upload.Add({&out, &tokens, &table});
  ops_.EmbeddingForward(out, tokens, table, begin);
}

void UploadedOps::EmbeddingBackward(Tensor dtable, Tensor tokens, Tensor dout,
                                    int64_t begin) const {
  Upload upload(device_);
  upload.Add({&dtable, &tokens, &dout});
  ops_.EmbeddingBackward(dtable, tokens, dout, begin);
}

void UploadedOps::LogitStatistics(Tensor statistics, Tensor logits, Tensor targets,
                                  int64_t begin) const {
  Upload upload(device_);
  upload.Add({&statistics, &logits, &targets});
  ops_.LogitStatistics(statistics, logits, targets, begin);
}

void UploadedOps::MergeLogitStatistics(Tensor lse, Tensor sums, Tensor gathered,
                                       Tensor targets) const {
  Upload upload(device_);
  upload.Add({&lse, &sums, &gathered, &targets});
  ops_.MergeLogitStatistics(lse, sums, gathered, targets);
}

void UploadedOps::LogitGradient(Tensor gradient, Tensor logits, Tensor targets, Tensor lse,
                                int64_t begin, TokenLossScales scales) const {
  Upload upload(device_);
  upload.Add({&gradient, &logits, &targets, &lse});
  ops_.LogitGradient(gradient, logits, targets, lse, begin, scales);
}

void UploadedOps::AdamW(const AdamWOptions& options, absl::Span<const AdamWItem> items_in) const {
  std::vector<AdamWItem> items(items_in.begin(), items_in.end());
  std::vector<Tensor*> tensors;
  for (AdamWItem& item : items) {
    tensors = Together(std::move(tensors),
                       {&item.weight, &item.m, &item.v, &item.gradient, &item.rounded});
  }
  Upload upload(device_);
  upload.Add(tensors);
  ops_.AdamW(options, items);
}

void UploadedOps::SumsOfSquares(Tensor sums, absl::Span<const Tensor> tensors_in) const {
  std::vector<Tensor> tensors(tensors_in.begin(), tensors_in.end());
  std::vector<Tensor*> all = {&sums};
  for (Tensor& tensor : tensors) all.push_back(&tensor);
  Upload upload(device_);
  upload.Add(all);
  ops_.SumsOfSquares(sums, tensors);
}

void UploadedOps::Add(Tensor out, Tensor a) const {
  Upload upload(device_);
  upload.Add({&out, &a});
  ops_.Add(out, a);
}

void UploadedOps::Cast(Tensor out, Tensor in) const {
  Upload upload(device_);
  upload.Add({&out, &in});
  ops_.Cast(out, in);
}

void UploadedOps::Scale(Tensor out, float factor) const {
  Upload upload(device_);
  upload.Add({&out});
  ops_.Scale(out, factor);
}

void UploadedOps::Zero(Tensor out) const {
  Upload upload(device_);
  upload.Add({&out});
  ops_.Zero(out);
}

}  // namespace twinstream::testing
