#include <omp.h>

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/near.h"
#include "tests/testing/tested_ops.h"
#include "tests/testing/vectors.h"

namespace twinstream::testing {
namespace {

constexpr float kEps = 1e-5F;

struct Case {
  AttentionShape shape;
  bool q_norm, k_norm, v_norm;
  DType dtype = DType::kF32;
};

// Heads of one kind: [B, count, T, D].
using Heads = std::vector<double>;

struct Kind {
  int64_t first, count;  // among the columns' heads
  bool norm, rotated;
};

std::vector<Kind> Kinds(const Case& c) {
  const int64_t H = c.shape.heads, K = c.shape.kv_heads;
  return {{0, H, c.q_norm, true}, {H, K, c.k_norm, true}, {H + K, K, c.v_norm, false}};
}

// The definition (QkvTensors of core/ops.h) in double: q, k, v of qkv.
std::vector<Heads> Reference(const Case& c, const std::vector<double>& qkv,
                             const std::vector<double>& weights) {
  const auto [B, T, H, K, D] = c.shape;
  std::vector<Heads> result;
  for (const Kind& kind : Kinds(c)) {
    Heads heads(static_cast<size_t>(B * kind.count * T * D));
    for (int64_t b = 0; b < B; ++b)
      for (int64_t i = 0; i < kind.count; ++i)
        for (int64_t t = 0; t < T; ++t) {
          const double* x =
              &qkv[static_cast<size_t>(((b * T + t) * (H + 2 * K) + kind.first + i) * D)];
          double* y = &heads[static_cast<size_t>(((b * kind.count + i) * T + t) * D)];
          double square = 0;
          for (int64_t j = 0; j < D; ++j) square += x[j] * x[j];
          const double r = 1 / std::sqrt(square / static_cast<double>(D) + kEps);
          const double* w = &weights[result.size() * static_cast<size_t>(D)];
          for (int64_t j = 0; j < D; ++j) y[j] = kind.norm ? w[j] * x[j] * r : x[j];
          for (int64_t j = 0; kind.rotated && j < D / 2; ++j) {
            const double angle =
                static_cast<double>(t) *
                std::pow(10000.0, -2.0 * static_cast<double>(j) / static_cast<double>(D));
            const double first = y[j], second = y[j + D / 2];
            y[j] = std::cos(angle) * first - std::sin(angle) * second;
            y[j + D / 2] = std::cos(angle) * second + std::sin(angle) * first;
          }
        }
    result.push_back(heads);
  }
  return result;
}

// The operation's tensors; q, k, v are outputs of forward, then gradients for backward.
struct Qkv {
  explicit Qkv(const Case& c_in) : c(c_in) {
    const auto [B, T, H, K, D] = c.shape;
    qkv = RandomFloats(B * T * (H + 2 * K) * D, 1, c.dtype);
    weights = RandomFloats(3 * D, 2);
    for (const Kind& kind : Kinds(c))
      heads.emplace_back(static_cast<size_t>(B * T * kind.count * D), NAN);
    scales.assign(static_cast<size_t>(B * T * (H + 2 * K)), NAN);
    dqkv.assign(qkv.size(), NAN);
    dweights.assign(weights.size(), 0.5F);  // gradients are accumulated
    for (int64_t t = 0; t < T; ++t)
      for (int64_t j = 0; j < D; ++j) {
        const double angle =
            static_cast<double>(t) *
            std::pow(10000.0, -2.0 * static_cast<double>(j % (D / 2)) / static_cast<double>(D));
        rope.push_back(static_cast<float>(j < D / 2 ? std::cos(angle) : std::sin(angle)));
      }
  }

  Tensor Weight(std::vector<float>& of, int64_t kind, bool present) {
    return present ? View(of, {3, c.shape.head_dim}).At(kind) : Tensor();
  }
  Shape columns() const { return {c.shape.rows(), c.shape.qkv_columns()}; }
  // The operation's tensors while they are lent.
  struct Loan {
    explicit Loan(Qkv& of)
        : qkv(of.qkv, of.columns(), of.c.dtype),
          q(of.heads[0], of.HeadsShape(of.c.shape.heads), of.c.dtype),
          k(of.heads[1], of.HeadsShape(of.c.shape.kv_heads), of.c.dtype),
          v(of.heads[2], of.HeadsShape(of.c.shape.kv_heads), of.c.dtype),
          tensors(of.Tensors(*this)) {}
    Lent qkv, q, k, v;
    QkvTensors tensors;
  };
  Shape HeadsShape(int64_t count) const {
    return {c.shape.batch, count, c.shape.sequence, c.shape.head_dim};
  }
  QkvTensors Tensors(const Loan& loan) {
    const auto [B, T, H, K, D] = c.shape;
    QkvTensors t;
    t.qkv = loan.qkv;
    t.q = loan.q;
    t.k = loan.k;
    t.v = loan.v;
    t.rope = View(rope, {T, D});
    t.q_norm = Weight(weights, 0, c.q_norm);
    t.k_norm = Weight(weights, 1, c.k_norm);
    t.v_norm = Weight(weights, 2, c.v_norm);
    if (c.q_norm || c.k_norm || c.v_norm) t.scales = View(scales, {B * T, H + 2 * K});
    return t;
  }
  void Forward() { testing::TestedOps().QkvForward(c.shape, kEps, Loan(*this).tensors); }
  // Gradients for backward.
  std::vector<std::vector<float>> SetGradients() {
    for (size_t kind = 0; kind < heads.size(); ++kind)
      heads[kind] = RandomFloats(static_cast<int64_t>(heads[kind].size()), 10 + kind, c.dtype);
    return heads;
  }
  void Backward() {
    const Loan loan(*this);
    BackwardInto(loan, Lent(dqkv, columns(), c.dtype));
  }
  void BackwardInPlace() {
    const Loan loan(*this);
    BackwardInto(loan, loan.qkv);
  }
  void BackwardInto(const Loan& loan, Tensor gradient) {
    testing::TestedOps().QkvBackward(c.shape, loan.tensors, gradient, Weight(dweights, 0, c.q_norm),
                                     Weight(dweights, 1, c.k_norm), Weight(dweights, 2, c.v_norm));
  }

  Case c;
  std::vector<float> qkv, weights, rope, scales, dqkv, dweights;
  std::vector<std::vector<float>> heads;
};

// Central differences of sum(heads . dheads) with respect to each element of `variable`.
std::vector<double> Slopes(const std::vector<std::vector<float>>& dheads,
                           std::vector<double>& variable, const auto& heads_of) {
  constexpr double kStep = 1e-5;
  const auto objective = [&] {
    double sum = 0;
    const std::vector<Heads> heads = heads_of();
    for (size_t kind = 0; kind < heads.size(); ++kind)
      for (size_t i = 0; i < heads[kind].size(); ++i) sum += heads[kind][i] * dheads[kind][i];
    return sum;
  };
  std::vector<double> slopes;
  for (double& x : variable) {
    const double value = x;
    x = value + kStep;
    const double above = objective();
    x = value - kStep;
    slopes.push_back((above - objective()) / (2 * kStep));
    x = value;
  }
  return slopes;
}

class CpuQkv : public ::testing::TestWithParam<Case> {};

TEST_P(CpuQkv, ForwardEqualsTheDoubleReference) {
  Qkv op(GetParam());
  op.Forward();
  const std::vector<Heads> expected = Reference(op.c, ToDouble(op.qkv), ToDouble(op.weights));
  for (size_t kind = 0; kind < 3; ++kind)
    EXPECT_LT(RelativeError(op.heads[kind], expected[kind]),
              Tolerance(op.c.dtype, op.c.shape.head_dim))
        << "kind " << kind;
}

TEST_P(CpuQkv, BackwardEqualsFiniteDifferences) {
  Qkv op(GetParam());
  op.Forward();
  std::vector<double> qkv = ToDouble(op.qkv), weights = ToDouble(op.weights);
  const std::vector<std::vector<float>> dheads = op.SetGradients();
  op.Backward();

  const auto heads_of = [&] { return Reference(op.c, qkv, weights); };
  EXPECT_LT(RelativeError(op.dqkv, Slopes(dheads, qkv, heads_of)),
            Tolerance(op.c.dtype, op.c.shape.head_dim));
  std::vector<double> dweights = Slopes(dheads, weights, heads_of);
  for (double& slope : dweights) slope += 0.5;
  EXPECT_LT(RelativeError(op.dweights, dweights),
            Float32Tolerance(op.c.shape.rows() * op.c.shape.heads));
}

TEST_P(CpuQkv, TheGradientMayReplaceQkv) {
  Qkv apart(GetParam()), in_place(GetParam());
  for (Qkv* op : {&apart, &in_place}) {
    op->Forward();
    op->SetGradients();
  }
  apart.Backward();
  in_place.BackwardInPlace();
  EXPECT_EQ(in_place.qkv, apart.dqkv);
  EXPECT_EQ(in_place.dweights, apart.dweights);
}

std::vector<Case> Cases() {
  const AttentionShape same = {.batch = 2, .sequence = 3, .heads = 2, .kv_heads = 2, .head_dim = 8};
  const AttentionShape grouped = {
      .batch = 2, .sequence = 3, .heads = 4, .kv_heads = 2, .head_dim = 8};
  const AttentionShape odd = {.batch = 1, .sequence = 3, .heads = 3, .kv_heads = 1, .head_dim = 20};
  const AttentionShape wide = {
      .batch = 1, .sequence = 2, .heads = 1, .kv_heads = 1, .head_dim = 80};
  const AttentionShape usual = {
      .batch = 2, .sequence = 3, .heads = 4, .kv_heads = 2, .head_dim = 64};
  const AttentionShape large = {
      .batch = 3, .sequence = 2, .heads = 2, .kv_heads = 1, .head_dim = 128};
  std::vector<Case> cases;
  for (DType dtype : kActivationTypes) {
    for (const AttentionShape& shape : {usual, large}) {
      cases.push_back({shape, false, false, false, dtype});
      cases.push_back({shape, true, true, true, dtype});
    }
    cases.push_back({same, false, false, false, dtype});
    cases.push_back({grouped, true, true, false, dtype});
    cases.push_back({odd, true, true, true, dtype});
    cases.push_back({wide, false, true, true, dtype});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, CpuQkv, ::testing::ValuesIn(Cases()));

TEST(CpuQkvBackward, NormGradientsRepeatBitForBit) {
  const Case c{
      {.batch = 4, .sequence = 64, .heads = 4, .kv_heads = 2, .head_dim = 32}, true, true, true};
  const int threads_before = omp_get_max_threads();
  omp_set_num_threads(3);
  Qkv first(c), second(c);
  for (Qkv* op : {&first, &second}) {
    op->Forward();
    op->SetGradients();
    op->Backward();
  }
  omp_set_num_threads(threads_before);
  EXPECT_EQ(first.dweights, second.dweights);
  EXPECT_EQ(first.dqkv, second.dqkv);
}

// v is not rotated: the gradient of its norm is a plain sum.
TEST(CpuQkvBackward, NormGradientsAreSumsOverAllRows) {
  const Case c{
      {.batch = 2, .sequence = 2100, .heads = 1, .kv_heads = 1, .head_dim = 4}, false, false, true};
  Qkv op(c);
  op.Forward();
  const std::vector<float> dv = op.SetGradients()[2];
  op.Backward();
  const auto [B, T, H, K, D] = c.shape;
  std::vector<double> expected(static_cast<size_t>(D), 0.5);
  for (int64_t n = 0; n < B * T; ++n)
    for (int64_t j = 0; j < D; ++j) {
      const double normed = static_cast<double>(op.qkv[static_cast<size_t>((n * 3 + 2) * D + j)]) *
                            op.scales[static_cast<size_t>(n * 3 + 2)];
      expected[static_cast<size_t>(j)] += normed * dv[static_cast<size_t>(n * D + j)];
    }
  const std::vector<float> actual(op.dweights.begin() + 2 * D, op.dweights.end());
  EXPECT_LT(RelativeError(actual, expected), Float32Tolerance(B * T));
}

// Tokens are taken in blocks, which end with a sequence.
TEST(CpuQkv, LongSequencesEqualTheDoubleReference) {
  const Case c{
      {.batch = 2, .sequence = 141, .heads = 2, .kv_heads = 1, .head_dim = 4}, true, true, false};
  Qkv op(c);
  op.Forward();
  std::vector<double> qkv = ToDouble(op.qkv);
  const std::vector<double> weights = ToDouble(op.weights);
  const std::vector<Heads> expected = Reference(c, qkv, weights);
  for (size_t kind = 0; kind < 3; ++kind)
    EXPECT_LT(RelativeError(op.heads[kind], expected[kind]), Float32Tolerance(c.shape.head_dim));
  const std::vector<std::vector<float>> dheads = op.SetGradients();
  op.Backward();
  const auto heads_of = [&] { return Reference(c, qkv, weights); };
  EXPECT_LT(RelativeError(op.dqkv, Slopes(dheads, qkv, heads_of)),
            Float32Tolerance(c.shape.head_dim));
}

// Parts of larger tensors begin anywhere.
TEST(CpuQkvForward, TensorsMayBeginAtAnyElement) {
  const Case c{
      {.batch = 1, .sequence = 3, .heads = 3, .kv_heads = 1, .head_dim = 64}, true, true, true};
  Qkv op(c);
  op.Forward();
  const std::vector<float> q = op.heads[0];
  std::vector<float> shifted(q.size() + 1);
  {
    Qkv::Loan loan(op);
    loan.tensors.q = View(shifted, {static_cast<int64_t>(shifted.size())})
                         .Rows(1, static_cast<int64_t>(shifted.size()))
                         .Reshape(op.HeadsShape(c.shape.heads));
    TestedOps().QkvForward(c.shape, kEps, loan.tensors);
  }
  EXPECT_LT(RelativeError({shifted.data() + 1, q.size()}, ToDouble(q)),
            Float32Tolerance(c.shape.head_dim));
}

}  // namespace
}  // namespace twinstream::testing
