// A device that computes nothing and writes down what it is asked for.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "core/device.h"
#include "core/ops.h"

namespace twinstream::testing {

// Every operation and its arguments as text: a tensor or a struct passed by reference is its
// address, a span its address and size.
class RecordingOps final : public Ops {
 public:
  explicit RecordingOps(std::vector<std::string>& calls) : calls_(calls) {}

  void Matmul(Tensor out, Tensor a, Tensor b, MatmulOptions o) const override {
    Record("Matmul", out, a, b, o.transpose_a, o.transpose_b, o.accumulate, o.varying);
  }
  void GroupedMatmul(Tensor out, Tensor a, Tensor b, absl::Span<const int64_t> rows_of_group,
                     MatmulOptions o) const override {
    Record("GroupedMatmul", out, a, b, absl::StrJoin(rows_of_group, ","), o.transpose_a,
           o.transpose_b, o.accumulate, o.varying);
  }
  void ResidualForward(const ResidualSite& site, const ResidualForwardTensors& t) const override {
    Record("ResidualForward", &site, &t);
  }
  void ResidualBackward(const ResidualSite& site, const ResidualBackwardTensors& t) const override {
    Record("ResidualBackward", &site, &t);
  }
  void QkvForward(const AttentionShape& shape, float eps, const QkvTensors& t) const override {
    Record("QkvForward", &shape, eps, &t);
  }
  void QkvBackward(const AttentionShape& shape, const QkvTensors& t, Tensor dqkv, Tensor dq_norm,
                   Tensor dk_norm, Tensor dv_norm) const override {
    Record("QkvBackward", &shape, &t, dqkv, dq_norm, dk_norm, dv_norm);
  }
  void AttentionForward(const AttentionShape& shape, const AttentionTensors& t) const override {
    Record("AttentionForward", &shape, &t);
  }
  void AttentionBackward(const AttentionShape& shape, const AttentionTensors& t,
                         const AttentionGradients& g) const override {
    Record("AttentionBackward", &shape, &t, &g);
  }
  void AttentionMergeForward(const AttentionShape& shape, const AttentionRectangle& rectangle,
                             const AttentionTensors& t) const override {
    Record("AttentionMergeForward", &shape, &rectangle, &t);
  }
  void AttentionMergeBackward(const AttentionShape& shape, const AttentionRectangle& rectangle,
                              const AttentionTensors& t,
                              const AttentionGradients& g) const override {
    Record("AttentionMergeBackward", &shape, &rectangle, &t, &g);
  }
  void SwiGluForward(Tensor out, Tensor up) const override { Record("SwiGluForward", out, up); }
  void SwiGluBackward(Tensor dup, Tensor dout, Tensor up) const override {
    Record("SwiGluBackward", dup, dout, up);
  }
  void RouteTokens(const RoutingTensors& t) const override { Record("RouteTokens", &t); }
  void RouterBackward(const RoutingTensors& t, Tensor weighted,
                      const RouterLossScales& scales) const override {
    Record("RouterBackward", &t, weighted, &scales);
  }
  void AddRouterLosses(Tensor losses, Tensor loads, Tensor statistics,
                       int64_t top_k) const override {
    Record("AddRouterLosses", losses, loads, statistics, top_k);
  }
  void GatherRows(Tensor out, Tensor in, Tensor choices, Tensor weights) const override {
    Record("GatherRows", out, in, choices, weights);
  }
  void CombineRows(Tensor out, Tensor in, Tensor rows, Tensor weights) const override {
    Record("CombineRows", out, in, rows, weights);
  }
  void RowProducts(Tensor out, Tensor a, Tensor b) const override {
    Record("RowProducts", out, a, b);
  }
  void EmbeddingForward(Tensor out, Tensor tokens, Tensor table, int64_t begin) const override {
    Record("EmbeddingForward", out, tokens, table, begin);
  }
  void EmbeddingBackward(Tensor dtable, Tensor tokens, Tensor dout, int64_t begin) const override {
    Record("EmbeddingBackward", dtable, tokens, dout, begin);
  }
  void LogitStatistics(Tensor statistics, Tensor logits, Tensor targets,
                       int64_t begin) const override {
    Record("LogitStatistics", statistics, logits, targets, begin);
  }
  void MergeLogitStatistics(Tensor lse, Tensor sums, Tensor gathered,
                            Tensor targets) const override {
    Record("MergeLogitStatistics", lse, sums, gathered, targets);
  }
  void LogitGradient(Tensor gradient, Tensor logits, Tensor targets, Tensor lse, int64_t begin,
                     TokenLossScales scales) const override {
    Record("LogitGradient", gradient, logits, targets, lse, begin, scales.z_loss, scales.total);
  }
  void AdamW(const AdamWOptions& options, absl::Span<const AdamWItem> items) const override {
    Record("AdamW", &options, items.data(), static_cast<int64_t>(items.size()));
  }
  void SumsOfSquares(Tensor sums, absl::Span<const Tensor> tensors) const override {
    Record("SumsOfSquares", sums, tensors.data(), static_cast<int64_t>(tensors.size()));
  }
  void Add(Tensor out, Tensor a) const override { Record("Add", out, a); }
  void Cast(Tensor out, Tensor in) const override { Record("Cast", out, in); }
  void Scale(Tensor out, float factor) const override { Record("Scale", out, factor); }
  void Zero(Tensor out) const override { Record("Zero", out); }

 private:
  static std::string Text(Tensor tensor) { return Text(tensor.data()); }
  static std::string Text(const void* address) {
    return absl::StrCat(absl::Hex(reinterpret_cast<uintptr_t>(address)));
  }
  static std::string Text(const std::string& text) { return text; }
  static std::string Text(int64_t number) { return absl::StrCat(number); }
  static std::string Text(float number) { return absl::StrCat(number); }
  static std::string Text(bool option) { return option ? "true" : "false"; }

  template <class... Arguments>
  void Record(absl::string_view name, const Arguments&... arguments) const {
    std::string call(name);
    (absl::StrAppend(&call, " ", Text(arguments)), ...);
    calls_.push_back(call);
  }

  std::vector<std::string>& calls_;
};

class RecordingDevice final : public Device {
 public:
  // calls: outlives the device.
  explicit RecordingDevice(std::vector<std::string>& calls) : calls_(calls), ops_(calls) {}

  absl::string_view name() const override { return "recording"; }
  std::byte* Allocate(int64_t /*bytes*/) override {
    calls_.emplace_back("Allocate");
    return nullptr;
  }
  void Free(std::byte* /*data*/, int64_t /*bytes*/) override { calls_.emplace_back("Free"); }
  int64_t FreeBytes() const override { return 0; }
  std::byte* AllocateHost(int64_t /*bytes*/) override {
    calls_.emplace_back("AllocateHost");
    return nullptr;
  }
  void FreeHost(std::byte* /*data*/, int64_t /*bytes*/) override {
    calls_.emplace_back("FreeHost");
  }
  void Copy(Tensor /*to*/, Tensor /*from*/) override { calls_.emplace_back("Copy"); }
  void CopyIn(Tensor /*to*/, const void* /*host*/) override { calls_.emplace_back("CopyIn"); }
  void CopyOut(void* /*host*/, Tensor /*from*/) override { calls_.emplace_back("CopyOut"); }
  void Synchronize() override { calls_.emplace_back("Synchronize"); }
  std::unique_ptr<RecordedWork> Record(absl::FunctionRef<void()> /*issue*/) override {
    calls_.emplace_back("Record");
    return nullptr;
  }
  const Ops& ops() const override { return ops_; }
  bool host_memory() const override { return false; }
  DeviceNetwork* network() override { return nullptr; }

 private:
  std::vector<std::string>& calls_;
  RecordingOps ops_;
};

}  // namespace twinstream::testing
