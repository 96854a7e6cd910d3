// The floors that operations are measured against: what each of them must compute and move. Weights
// of norms [C] and scales of rows [N] are not counted beside the rows [N, C] that they belong to.
#include "core/profiled_device.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/types/span.h"
#include "core/grouped_products.h"
#include "core/ops.h"

namespace twinstream {
namespace {

double BytesOf(Tensor tensor) { return tensor ? static_cast<double>(tensor.bytes()) : 0; }

// Reading or writing each once; one that is updated in place is named twice.
OpWork Traffic(std::initializer_list<Tensor> tensors) {
  OpWork work;
  for (Tensor tensor : tensors) work.bytes += BytesOf(tensor);
  return work;
}

using ProductNames = absl::string_view[2][2][2];  // by transpose_a, transpose_b, accumulate
constexpr ProductNames kProductNames = {
    {{"product nn", "product nn +="}, {"product nt", "product nt +="}},
    {{"product tn", "product tn +="}, {"product tt", "product tt +="}}};
constexpr ProductNames kGroupedProductNames = {
    {{"grouped product nn", "grouped product nn +="},
     {"grouped product nt", "grouped product nt +="}},
    {{"grouped product tn", "grouped product tn +="}, {}}};

OpKey ProductKey(const ProductNames& names, Tensor out, Tensor a, Tensor b,
                 const MatmulOptions& options) {
  OpKey key = {.op = names[options.transpose_a][options.transpose_b][options.accumulate],
               .dtype = a.dtype() == b.dtype() ? a.dtype() : DType::kF32,
               .m = out.dim(0),
               .n = out.dim(1),
               .k = a.dim(options.transpose_a ? 0 : 1)};
  if (options.varying) (options.transpose_a ? key.k : key.m) = OpKey::kVarying;
  return key;
}

OpWork ProductWork(Tensor out, Tensor a, Tensor b, MatmulOptions options) {
  OpWork work = Traffic({a, b, out, options.accumulate ? out : Tensor()});
  work.flops = 2.0 * static_cast<double>(out.elements()) *
               static_cast<double>(a.dim(options.transpose_a ? 0 : 1));
  return work;
}

// What all groups have in common, and what they take together; a group without rows at most zeros.
std::pair<OpKey, OpWork> GroupedProduct(Tensor out, Tensor a, Tensor b,
                                        absl::Span<const int64_t> rows_of_group,
                                        const MatmulOptions& options) {
  OpKey key;
  OpWork work;
  ForEachGroup(out, a, b, rows_of_group, options, [&](const GroupProduct& p) {
    key = ProductKey(kGroupedProductNames, p.out, p.a, p.b, p.options);
    const bool sets_to_zero = options.transpose_a && !options.accumulate;
    const OpWork of_group = p.a.dim(0) > 0 ? ProductWork(p.out, p.a, p.b, p.options)
                                           : Traffic({sets_to_zero ? p.out : Tensor()});
    work.flops += of_group.flops;
    work.bytes += of_group.bytes;
  });
  return {key, work};
}

// A write of the block before reads x and o, and y where it changes or moves; the read of the block
// after finds the streams in cache, or reads them when it comes alone.
OpWork ResidualForwardWork(const ResidualSite& site, const ResidualForwardTensors& t) {
  OpWork work;
  if (site.read != nullptr) work.bytes += BytesOf(t.h);
  if (site.write != nullptr) {
    work.bytes += BytesOf(t.x) + BytesOf(t.o) + BytesOf(t.x_out);
    const ResidualWrite::Y y = site.write->y;
    const bool moves = y == ResidualWrite::Y::kKeep && t.y_out.data() != t.y.data();
    if (y == ResidualWrite::Y::kAdd || moves) work.bytes += BytesOf(t.y);
    if (y != ResidualWrite::Y::kKeep || moves) work.bytes += BytesOf(t.y_out);
  } else if (site.read != nullptr) {
    if (site.read->x != ResidualRead::X::kNone || site.read->base_norm) work.bytes += BytesOf(t.x);
    if (site.read->y) work.bytes += BytesOf(t.y);
  }
  return work;
}

// What the rule takes, whatever tensors came along. dx and dy are in place: read, and written where
// they change.
OpWork ResidualBackwardWork(const ResidualSite& site, const ResidualBackwardTensors& t) {
  using X = ResidualRead::X;
  using Y = ResidualWrite::Y;
  OpWork work;
  const ResidualRead read = site.read != nullptr ? *site.read : ResidualRead();
  const ResidualWrite write = site.write != nullptr ? *site.write : ResidualWrite();
  const bool reads_x = read.x != X::kNone;
  const bool x_is_weighted = read.base_norm || read.x == X::kNorm || read.x == X::kScale;
  const bool changes_dx = reads_x || read.base_norm || write.base_gain != 1 || write.y == Y::kSet;
  if (site.read != nullptr) work.bytes += BytesOf(t.dh) + BytesOf(t.h);
  if (x_is_weighted || ((read.input_norm || t.h) && reads_x)) work.bytes += BytesOf(t.x);
  if (changes_dx || site.write != nullptr) work.bytes += BytesOf(t.dx);
  if (changes_dx) work.bytes += BytesOf(t.dx);
  if (read.y) work.bytes += BytesOf(t.y);
  if (read.y || write.y != Y::kKeep) work.bytes += BytesOf(t.dy);
  if (read.y || write.y == Y::kSet) work.bytes += BytesOf(t.dy);
  if (site.write != nullptr) work.bytes += BytesOf(t.d_o) + (write.output_norm ? BytesOf(t.o) : 0);
  return work;
}

// Products of D elements for each query and key that it sees: forward q k' and p v; backward the
// scores again, dv, dp, dq and dk.
constexpr double kForwardProducts = 2, kBackwardProducts = 5;

double AttentionFlops(const AttentionShape& shape, double products, double pairs) {
  return 2 * products * pairs * static_cast<double>(shape.batch * shape.heads * shape.head_dim);
}

// Of one head of one sequence.
double CausalPairs(int64_t T) { return 0.5 * static_cast<double>(T) * static_cast<double>(T + 1); }
double PairsOf(const AttentionRectangle& rows) {
  return static_cast<double>((rows.query_end - rows.query_begin) * (rows.key_end - rows.key_begin));
}

// Traffic of the rows of a rectangle: `of_queries` are by query token, `of_keys` by key token.
OpWork RectangleTraffic(const AttentionShape& shape, const AttentionRectangle& rows,
                        std::initializer_list<Tensor> of_queries,
                        std::initializer_list<Tensor> of_keys) {
  const auto share = [&](int64_t tokens) {
    return static_cast<double>(tokens) / static_cast<double>(shape.sequence);
  };
  return {.bytes = Traffic(of_queries).bytes * share(rows.query_end - rows.query_begin) +
                   Traffic(of_keys).bytes * share(rows.key_end - rows.key_begin)};
}

// The rows of a table that the tokens ask for, no more than there are.
double LookedUpBytes(Tensor table, Tensor tokens) {
  return BytesOf(table) *
         std::min(1.0, static_cast<double>(tokens.elements()) / static_cast<double>(table.dim(0)));
}

class ProfiledOps final : public Ops {
 public:
  ProfiledOps(Device& device, OpProfile& profile)
      : device_(device), ops_(device.ops()), profile_(profile) {}

  template <class F>
  void Time(const OpKey& key, OpWork work, F f) const {
    if (!profile_.IsRecording()) return f();
    device_.Synchronize();
    const OpProfile::Clock::time_point begin = OpProfile::Clock::now();
    f();
    device_.Synchronize();
    profile_.Add(key, work, OpProfile::Clock::now() - begin);
  }

  void Matmul(Tensor out, Tensor a, Tensor b, MatmulOptions options) const override {
    Time(ProductKey(kProductNames, out, a, b, options), ProductWork(out, a, b, options),
         [&] { ops_.Matmul(out, a, b, options); });
  }
  void GroupedMatmul(Tensor out, Tensor a, Tensor b, absl::Span<const int64_t> rows_of_group,
                     MatmulOptions options) const override {
    const auto [key, work] = GroupedProduct(out, a, b, rows_of_group, options);
    Time(key, work, [&] { ops_.GroupedMatmul(out, a, b, rows_of_group, options); });
  }
  void ResidualForward(const ResidualSite& site, const ResidualForwardTensors& t) const override {
    Time({"residual forward", t.x.dtype()}, ResidualForwardWork(site, t),
         [&] { ops_.ResidualForward(site, t); });
  }
  void ResidualBackward(const ResidualSite& site, const ResidualBackwardTensors& t) const override {
    Time({"residual backward", t.dx.dtype()}, ResidualBackwardWork(site, t),
         [&] { ops_.ResidualBackward(site, t); });
  }
  void QkvForward(const AttentionShape& shape, float eps, const QkvTensors& t) const override {
    Time({"qkv forward", t.qkv.dtype()}, Traffic({t.qkv, t.rope, t.q, t.k, t.v}),
         [&] { ops_.QkvForward(shape, eps, t); });
  }
  // Without norms the rotation's backward needs no qkv.
  void QkvBackward(const AttentionShape& shape, const QkvTensors& t, Tensor dqkv, Tensor dq_norm,
                   Tensor dk_norm, Tensor dv_norm) const override {
    const bool has_norms = t.q_norm || t.k_norm || t.v_norm;
    Time({"qkv backward", dqkv.dtype()},
         Traffic({t.q, t.k, t.v, t.rope, has_norms ? t.qkv : Tensor(), dqkv}),
         [&] { ops_.QkvBackward(shape, t, dqkv, dq_norm, dk_norm, dv_norm); });
  }

  void AttentionForward(const AttentionShape& shape, const AttentionTensors& t) const override {
    OpWork work = Traffic({t.q, t.k, t.v, t.out, t.lse});
    work.flops = AttentionFlops(shape, kForwardProducts, CausalPairs(shape.sequence));
    Time({"attention forward", t.q.dtype()}, work, [&] { ops_.AttentionForward(shape, t); });
  }
  void AttentionBackward(const AttentionShape& shape, const AttentionTensors& t,
                         const AttentionGradients& g) const override {
    OpWork work = Traffic({t.q, t.k, t.v, t.out, t.lse, g.dout, g.dq, g.dk, g.dv});
    work.flops = AttentionFlops(shape, kBackwardProducts, CausalPairs(shape.sequence));
    Time({"attention backward", t.q.dtype()}, work, [&] { ops_.AttentionBackward(shape, t, g); });
  }
  void AttentionMergeForward(const AttentionShape& shape, const AttentionRectangle& rectangle,
                             const AttentionTensors& t) const override {
    OpWork work = RectangleTraffic(shape, rectangle, {t.q, t.out, t.out, t.lse, t.lse}, {t.k, t.v});
    work.flops = AttentionFlops(shape, kForwardProducts, PairsOf(rectangle));
    Time({"attention merge forward", t.q.dtype()}, work,
         [&] { ops_.AttentionMergeForward(shape, rectangle, t); });
  }
  void AttentionMergeBackward(const AttentionShape& shape, const AttentionRectangle& rectangle,
                              const AttentionTensors& t,
                              const AttentionGradients& g) const override {
    OpWork work = RectangleTraffic(shape, rectangle, {t.q, t.out, t.lse, g.dout, g.dq, g.dq},
                                   {t.k, t.v, g.dk, g.dk, g.dv, g.dv});
    work.flops = AttentionFlops(shape, kBackwardProducts, PairsOf(rectangle));
    Time({"attention merge backward", t.q.dtype()}, work,
         [&] { ops_.AttentionMergeBackward(shape, rectangle, t, g); });
  }

  void SwiGluForward(Tensor out, Tensor up) const override {
    Time({"swiglu forward", up.dtype()}, Traffic({up, out}), [&] { ops_.SwiGluForward(out, up); });
  }
  void SwiGluBackward(Tensor dup, Tensor dout, Tensor up) const override {
    Time({"swiglu backward", up.dtype()}, Traffic({dout, up, dup}),
         [&] { ops_.SwiGluBackward(dup, dout, up); });
  }

  void RouteTokens(const RoutingTensors& t) const override {
    Time({"route tokens", t.probabilities.dtype()},
         Traffic({t.probabilities, t.probabilities, t.lse, t.experts, t.weights, t.rows, t.choices,
                  t.counts, t.statistics}),
         [&] { ops_.RouteTokens(t); });
  }
  void RouterBackward(const RoutingTensors& t, Tensor weighted,
                      const RouterLossScales& scales) const override {
    Time({"router backward", t.probabilities.dtype()},
         Traffic(
             {t.probabilities, t.probabilities, t.lse, t.experts, t.rows, t.statistics, weighted}),
         [&] { ops_.RouterBackward(t, weighted, scales); });
  }
  void AddRouterLosses(Tensor losses, Tensor loads, Tensor statistics,
                       int64_t top_k) const override {
    Time({"router losses", statistics.dtype()}, Traffic({statistics, losses, losses, loads, loads}),
         [&] { ops_.AddRouterLosses(losses, loads, statistics, top_k); });
  }
  void GatherRows(Tensor out, Tensor in, Tensor choices, Tensor weights) const override {
    Time({"gather rows", in.dtype()}, Traffic({in, choices, weights, out}),
         [&] { ops_.GatherRows(out, in, choices, weights); });
  }
  void CombineRows(Tensor out, Tensor in, Tensor rows, Tensor weights) const override {
    Time({"combine rows", in.dtype()}, Traffic({in, rows, weights, out}),
         [&] { ops_.CombineRows(out, in, rows, weights); });
  }
  void RowProducts(Tensor out, Tensor a, Tensor b) const override {
    Time({"row products", a.dtype()}, Traffic({a, b, out}), [&] { ops_.RowProducts(out, a, b); });
  }

  void EmbeddingForward(Tensor out, Tensor tokens, Tensor table, int64_t begin) const override {
    OpWork work = Traffic({tokens, out});
    work.bytes += LookedUpBytes(table, tokens);
    Time({"embedding forward", table.dtype()}, work,
         [&] { ops_.EmbeddingForward(out, tokens, table, begin); });
  }
  void EmbeddingBackward(Tensor dtable, Tensor tokens, Tensor dout, int64_t begin) const override {
    OpWork work = Traffic({tokens, dout});
    work.bytes += 2 * LookedUpBytes(dtable, tokens);
    Time({"embedding backward", dout.dtype()}, work,
         [&] { ops_.EmbeddingBackward(dtable, tokens, dout, begin); });
  }

  void LogitStatistics(Tensor statistics, Tensor logits, Tensor targets,
                       int64_t begin) const override {
    Time({"logit statistics", logits.dtype()}, Traffic({logits, targets, statistics}),
         [&] { ops_.LogitStatistics(statistics, logits, targets, begin); });
  }
  void MergeLogitStatistics(Tensor lse, Tensor sums, Tensor gathered,
                            Tensor targets) const override {
    Time({"merge logit statistics", gathered.dtype()},
         Traffic({gathered, targets, lse, sums, sums}),
         [&] { ops_.MergeLogitStatistics(lse, sums, gathered, targets); });
  }
  void LogitGradient(Tensor gradient, Tensor logits, Tensor targets, Tensor lse, int64_t begin,
                     TokenLossScales scales) const override {
    Time({"logit gradient", gradient.dtype()}, Traffic({logits, targets, lse, gradient}),
         [&] { ops_.LogitGradient(gradient, logits, targets, lse, begin, scales); });
  }

  void AdamW(const AdamWOptions& options, absl::Span<const AdamWItem> items) const override {
    OpWork work;
    for (const AdamWItem& i : items) {
      work.bytes += Traffic({i.weight, i.weight, i.m, i.m, i.v, i.v, i.gradient, i.rounded}).bytes;
    }
    Time({"adamw"}, work, [&] { ops_.AdamW(options, items); });
  }
  void SumsOfSquares(Tensor sums, absl::Span<const Tensor> tensors) const override {
    OpWork work = Traffic({sums});
    for (const Tensor& tensor : tensors) work.bytes += BytesOf(tensor);
    Time({"sums of squares"}, work, [&] { ops_.SumsOfSquares(sums, tensors); });
  }

  void Add(Tensor out, Tensor a) const override {
    Time({"add", out.dtype()}, Traffic({a, out, out}), [&] { ops_.Add(out, a); });
  }
  void Cast(Tensor out, Tensor in) const override {
    Time({"cast", out.dtype()}, Traffic({in, out}), [&] { ops_.Cast(out, in); });
  }
  void Scale(Tensor out, float factor) const override {
    Time({"scale", out.dtype()}, Traffic({out, out}), [&] { ops_.Scale(out, factor); });
  }
  void Zero(Tensor out) const override {
    Time({"zero", out.dtype()}, Traffic({out}), [&] { ops_.Zero(out); });
  }

 private:
  Device& device_;
  const Ops& ops_;
  OpProfile& profile_;
};

class ProfiledDevice final : public Device {
 public:
  ProfiledDevice(std::unique_ptr<Device> device, OpProfile& profile)
      : device_(std::move(device)), ops_(*device_, profile) {}

  absl::string_view name() const override { return device_->name(); }
  std::byte* Allocate(int64_t bytes) override { return device_->Allocate(bytes); }
  void Free(std::byte* data, int64_t bytes) override { device_->Free(data, bytes); }
  void Copy(Tensor to, Tensor from) override {
    ops_.Time({"copy", to.dtype()}, Traffic({from, to}), [&] { device_->Copy(to, from); });
  }
  int64_t FreeBytes() const override { return device_->FreeBytes(); }
  std::byte* AllocateHost(int64_t bytes) override { return device_->AllocateHost(bytes); }
  void FreeHost(std::byte* data, int64_t bytes) override { device_->FreeHost(data, bytes); }
  void CopyIn(Tensor to, const void* host) override { device_->CopyIn(to, host); }
  void CopyOut(void* host, Tensor from) override { device_->CopyOut(host, from); }
  void Synchronize() override { device_->Synchronize(); }
  // Operations are timed one by one.
  std::unique_ptr<RecordedWork> Record(absl::FunctionRef<void()> /*issue*/) override {
    return nullptr;
  }
  const Ops& ops() const override { return ops_; }
  bool host_memory() const override { return device_->host_memory(); }
  DeviceNetwork* network() override { return device_->network(); }

 private:
  std::unique_ptr<Device> device_;
  ProfiledOps ops_;
};

}  // namespace

std::unique_ptr<Device> MakeProfiledDevice(std::unique_ptr<Device> device, OpProfile& profile) {
  return std::make_unique<ProfiledDevice>(std::move(device), profile);
}

}  // namespace twinstream
