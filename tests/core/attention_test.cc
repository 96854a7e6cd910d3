#include <omp.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/testing/near.h"
#include "tests/testing/reference_attention.h"
#include "tests/testing/tested_ops.h"
#include "tests/testing/vectors.h"

namespace twinstream::testing {
namespace {

// Of q, k, v and dout, and of out and the gradients.
struct Types {
  DType operands = DType::kF32, results = DType::kF32;
};
constexpr Types kTypes[] = {{}, {.operands = DType::kBF16, .results = DType::kBF16}};

std::string NameOf(const Types& types) {
  return absl::StrFormat("%s to %s", NameOf(types.operands), NameOf(types.results));
}

struct Attention {
  explicit Attention(const AttentionShape& shape_in, float scale = 1, Types types_in = {})
      : shape(shape_in), types(types_in) {
    const DType dtype = types.operands;
    const int64_t query = shape.rows() * shape.heads * shape.head_dim;
    const int64_t key = shape.rows() * shape.kv_heads * shape.head_dim;
    q = RandomFloats(query, 1, dtype);
    k = RandomFloats(key, 2, dtype);
    v = RandomFloats(key, 3, dtype);
    dout = RandomFloats(query, 4, dtype);
    for (float& value : q) value *= scale;
    // Old contents must not matter.
    out = dq = std::vector<float>(q.size(), NAN);
    dk = dv = std::vector<float>(k.size(), NAN);
    lse.resize(static_cast<size_t>(shape.rows() * shape.heads), NAN);
  }

  AttentionInputs inputs() const { return {ToDouble(q), ToDouble(k), ToDouble(v)}; }

  Lent Rows(std::vector<float>& values, DType dtype) const {
    return Lent(values, {shape.rows(), shape.heads * shape.head_dim}, dtype);
  }
  Lent Queries(std::vector<float>& values, DType dtype) const {
    return Lent(values, {shape.batch, shape.heads, shape.sequence, shape.head_dim}, dtype);
  }
  Lent Keys(std::vector<float>& values, DType dtype) const {
    return Lent(values, {shape.batch, shape.kv_heads, shape.sequence, shape.head_dim}, dtype);
  }
  Tensor Lse() { return View(lse, {shape.batch, shape.heads, shape.sequence}); }

  void RunForward(const Ops& ops);
  void RunBackward(const Ops& ops);
  void Run(const Ops& ops) {
    RunForward(ops);
    RunBackward(ops);
  }

  AttentionShape shape;
  Types types;
  std::vector<float> q, k, v, dout, out, lse, dq, dk, dv;
};

// Queries of one and keys of one, perhaps another: what an operation takes, lent for a while.
struct Operands {
  Operands(Attention& queries, Attention& keys)
      : q(queries.Queries(queries.q, queries.types.operands)),
        k(keys.Keys(keys.k, keys.types.operands)),
        v(keys.Keys(keys.v, keys.types.operands)),
        out(queries.Rows(queries.out, queries.types.results)),
        dq(queries.Queries(queries.dq, queries.types.results)),
        dk(keys.Keys(keys.dk, keys.types.results)),
        dv(keys.Keys(keys.dv, keys.types.results)),
        dout(queries.Rows(queries.dout, queries.types.operands)),
        lse(queries.Lse()) {}
  AttentionTensors tensors() const { return {.q = q, .k = k, .v = v, .out = out, .lse = lse}; }
  AttentionGradients gradients() const { return {.dq = dq, .dk = dk, .dv = dv, .dout = dout}; }

  Lent q, k, v, out, dq, dk, dv, dout;
  Tensor lse;
};

void Attention::RunForward(const Ops& ops) {
  ops.AttentionForward(shape, Operands(*this, *this).tensors());
}

void Attention::RunBackward(const Ops& ops) {
  const Operands operands(*this, *this);
  ops.AttentionBackward(shape, operands.tensors(), operands.gradients());
}

std::string Name(const ::testing::TestParamInfo<AttentionShape>& info) {
  const AttentionShape& s = info.param;
  return absl::StrFormat("B%dT%dH%dK%dD%d", s.batch, s.sequence, s.heads, s.kv_heads, s.head_dim);
}

class CpuAttention : public ::testing::TestWithParam<AttentionShape> {};

void ExpectReference(const AttentionShape& shape, Types types) {
  SCOPED_TRACE(NameOf(types));
  Attention attention(shape, 1, types);
  const Ops& ops = testing::TestedOps();
  attention.Run(ops);

  const AttentionOutputs expected = ReferenceAttention(attention.shape, attention.inputs());
  const int64_t terms = shape.sequence + shape.head_dim;
  // Products of bf16 operands may round the probabilities and their gradients to bf16 as well.
  const DType dtype = types.operands;
  EXPECT_LT(RelativeError(attention.out, expected.out), Tolerance(dtype, terms));
  EXPECT_LT(RelativeError(attention.lse, expected.lse), Float32Tolerance(terms));

  const AttentionInputs gradients =
      ReferenceAttentionBackward(attention.shape, attention.inputs(), ToDouble(attention.dout));
  // Of one token the scores' gradient is zero, the difference of equal numbers of about 1: float32
  // leaves their rounding.
  const double floor = shape.sequence == 1 ? 1.0 : 1e-6;
  // dq and dk are rounded, and so was the out that dO . O is taken of.
  EXPECT_LT(RelativeError(attention.dq, gradients.q, floor), Tolerance(dtype, terms, 2));
  EXPECT_LT(RelativeError(attention.dk, gradients.k, floor), Tolerance(dtype, terms, 2));
  EXPECT_LT(RelativeError(attention.dv, gradients.v), Tolerance(dtype, terms));
}

TEST_P(CpuAttention, EqualsTheDoubleReference) {
  for (const Types& types : kTypes) ExpectReference(GetParam(), types);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CpuAttention,
    ::testing::Values(
        AttentionShape{.batch = 1, .sequence = 1, .heads = 1, .kv_heads = 1, .head_dim = 8},
        AttentionShape{.batch = 2, .sequence = 17, .heads = 2, .kv_heads = 2, .head_dim = 8},
        AttentionShape{.batch = 1, .sequence = 64, .heads = 2, .kv_heads = 1, .head_dim = 80},
        AttentionShape{.batch = 1, .sequence = 45, .heads = 3, .kv_heads = 1, .head_dim = 10},
        AttentionShape{.batch = 1, .sequence = 160, .heads = 2, .kv_heads = 1, .head_dim = 128},
        AttentionShape{.batch = 1, .sequence = 70, .heads = 1, .kv_heads = 1, .head_dim = 200},
        AttentionShape{.batch = 2, .sequence = 65, .heads = 4, .kv_heads = 2, .head_dim = 32},
        AttentionShape{.batch = 1, .sequence = 200, .heads = 6, .kv_heads = 2, .head_dim = 64}),
    Name);

// The oracle's gradients are the slopes of its outputs.
TEST(ReferenceAttention, GradientsEqualFiniteDifferences) {
  const AttentionShape shape{.batch = 2, .sequence = 5, .heads = 4, .kv_heads = 2, .head_dim = 4};
  Attention attention(shape);
  AttentionInputs inputs = attention.inputs();
  const std::vector<double> dout = ToDouble(attention.dout);
  const AttentionInputs gradients = ReferenceAttentionBackward(shape, inputs, dout);
  const auto objective = [&] {
    const std::vector<double> out = ReferenceAttention(shape, inputs).out;
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    return sum;
  };
  const auto check = [&](std::vector<double>& input, const std::vector<double>& gradient) {
    constexpr double kStep = 1e-5;
    for (size_t i = 0; i < input.size(); ++i) {
      const double value = input[i];
      input[i] = value + kStep;
      const double above = objective();
      input[i] = value - kStep;
      const double below = objective();
      input[i] = value;
      ASSERT_NEAR((above - below) / (2 * kStep), gradient[i], 1e-8) << "element " << i;
    }
  };
  check(inputs.q, gradients.q);
  check(inputs.k, gradients.k);
  check(inputs.v, gradients.v);
}

// Tokens [begin, end) of a tensor [outer, T, inner].
template <class Value>
std::vector<Value> Tokens(const std::vector<Value>& all, int64_t outer, int64_t inner,
                          int64_t begin, int64_t end) {
  const int64_t T = static_cast<int64_t>(all.size()) / (outer * inner);
  std::vector<Value> tokens;
  for (int64_t i = 0; i < outer; ++i) {
    tokens.insert(tokens.end(), all.begin() + (i * T + begin) * inner,
                  all.begin() + (i * T + end) * inner);
  }
  return tokens;
}

// A sequence in parts of T tokens, each with tensors of its own. `shape`: of a part.
struct Parts {
  Parts(const AttentionShape& shape, const Attention& whole) {
    const int64_t B = shape.batch, T = shape.sequence, H = shape.heads, K = shape.kv_heads,
                  D = shape.head_dim;
    for (int64_t p = 0; p < whole.shape.sequence / T; ++p) {
      const auto cut = [&](const std::vector<float>& all, int64_t outer, int64_t inner) {
        return Tokens(all, outer, inner, p * T, (p + 1) * T);
      };
      parts.emplace_back(shape, 1, whole.types);
      parts.back().q = cut(whole.q, B * H, D);
      parts.back().k = cut(whole.k, B * K, D);
      parts.back().v = cut(whole.v, B * K, D);
      parts.back().dout = cut(whole.dout, B, H * D);
    }
  }

  // f(part, earlier, rectangle) for four rectangles of each pair.
  template <class F>
  void ForEachRectangle(F f) {
    for (size_t p = 0; p < parts.size(); ++p) {
      for (size_t earlier = 0; earlier < p; ++earlier) {
        const int64_t T = parts[p].shape.sequence, query = T / 3, key = 1 + T / 6;
        f(parts[p], parts[earlier], AttentionRectangle{0, query, 0, key});
        f(parts[p], parts[earlier], AttentionRectangle{0, query, key, T});
        f(parts[p], parts[earlier], AttentionRectangle{query, T, key, T});
        f(parts[p], parts[earlier], AttentionRectangle{query, T, 0, key});
      }
    }
  }

  void Run(const Ops& ops) {
    for (Attention& part : parts) part.RunForward(ops);
    ForEachRectangle([&](Attention& part, Attention& earlier, const AttentionRectangle& seen) {
      ops.AttentionMergeForward(part.shape, seen, Operands(part, earlier).tensors());
    });
    for (Attention& part : parts) part.RunBackward(ops);
    ForEachRectangle([&](Attention& part, Attention& earlier, const AttentionRectangle& seen) {
      const Operands operands(part, earlier);
      ops.AttentionMergeBackward(part.shape, seen, operands.tensors(), operands.gradients());
    });
  }

  std::vector<Attention> parts;
};

class CpuAttentionOfParts : public ::testing::TestWithParam<AttentionShape> {};

void ExpectMergesIntoTheWhole(const AttentionShape& shape, Types types, int64_t parts = 3) {
  SCOPED_TRACE(NameOf(types));
  AttentionShape whole_shape = shape;
  whole_shape.sequence *= parts;
  const Attention whole(whole_shape, 1, types);
  Parts cut(shape, whole);
  cut.Run(testing::TestedOps());

  const AttentionOutputs expected = ReferenceAttention(whole_shape, whole.inputs());
  const AttentionInputs gradients =
      ReferenceAttentionBackward(whole_shape, whole.inputs(), ToDouble(whole.dout));
  const int64_t B = shape.batch, T = shape.sequence, H = shape.heads, K = shape.kv_heads,
                D = shape.head_dim;
  // Of three parts, a row of the last is written once and merged into by four rectangles, rounded
  // each time; as often is a gradient, after the out that dO . O is taken of.
  const int64_t terms = whole_shape.sequence + D;
  const double tolerance = Tolerance(types.operands, terms, 5),
               gradient_tolerance = Tolerance(types.operands, terms, 10);
  for (int64_t p = 0; p < parts; ++p) {
    const Attention& part = cut.parts[static_cast<size_t>(p)];
    const auto error = [&](const std::vector<float>& actual, const std::vector<double>& all,
                           int64_t outer, int64_t inner) {
      return RelativeError(actual, Tokens(all, outer, inner, p * T, (p + 1) * T));
    };
    EXPECT_LT(error(part.out, expected.out, B, H * D), tolerance) << "part " << p;
    EXPECT_LT(error(part.lse, expected.lse, B * H, 1), Float32Tolerance(terms)) << "part " << p;
    EXPECT_LT(error(part.dq, gradients.q, B * H, D), gradient_tolerance) << "part " << p;
    EXPECT_LT(error(part.dk, gradients.k, B * K, D), gradient_tolerance) << "part " << p;
    EXPECT_LT(error(part.dv, gradients.v, B * K, D), gradient_tolerance) << "part " << p;
  }
}

TEST_P(CpuAttentionOfParts, MergesIntoTheWhole) {
  for (const Types& types : kTypes) ExpectMergesIntoTheWhole(GetParam(), types);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CpuAttentionOfParts,
    ::testing::Values(
        AttentionShape{.batch = 1, .sequence = 3, .heads = 1, .kv_heads = 1, .head_dim = 8},
        AttentionShape{.batch = 2, .sequence = 17, .heads = 2, .kv_heads = 2, .head_dim = 16},
        AttentionShape{.batch = 1, .sequence = 130, .heads = 2, .kv_heads = 1, .head_dim = 40}),
    Name);

TEST(CpuAttentionMerge, TakesFloat32ResultsOfBFloat16) {
  ExpectMergesIntoTheWhole({.batch = 1, .sequence = 5, .heads = 2, .kv_heads = 1, .head_dim = 24},
                           {.operands = DType::kBF16, .results = DType::kF32});
}

// More than a tile of them, the last one not full, and heads that fill a tile's rows or do not.
// Results are those of ring attention: float32 until they are complete.
TEST(CpuAttentionMerge, TakesManyKeysOfWideHeads) {
  for (const int64_t head_dim : {80, 128}) {
    ExpectMergesIntoTheWhole(
        {.batch = 1, .sequence = 160, .heads = 2, .kv_heads = 1, .head_dim = head_dim},
        {.operands = DType::kBF16, .results = DType::kF32}, /*parts=*/2);
  }
}

// More tiles of keys than a kernel has room for at a time.
TEST(CpuAttentionForward, OfManyKeysEqualsTheDoubleReference) {
  for (const int64_t head_dim : {64, 128}) {
    Attention attention(
        {.batch = 1, .sequence = 400, .heads = 2, .kv_heads = 1, .head_dim = head_dim}, 1,
        kTypes[1]);
    attention.RunForward(testing::TestedOps());
    const AttentionOutputs expected = ReferenceAttention(attention.shape, attention.inputs());
    const int64_t terms = attention.shape.sequence + head_dim;
    EXPECT_LT(RelativeError(attention.out, expected.out), Tolerance(DType::kBF16, terms));
    EXPECT_LT(RelativeError(attention.lse, expected.lse), Float32Tolerance(terms));
  }
}

// exp of an unshifted score would overflow.
TEST(CpuAttentionForward, LargeScoresStayFinite) {
  Attention attention({.batch = 1, .sequence = 70, .heads = 1, .kv_heads = 1, .head_dim = 16}, 200);
  attention.Run(testing::TestedOps());
  const AttentionOutputs expected = ReferenceAttention(attention.shape, attention.inputs());
  // A score s carries an error of about |s| 2^-24, which the exponential turns into a factor.
  EXPECT_LT(RelativeError(attention.out, expected.out), 2e-4);
  for (const auto* values : {&attention.lse, &attention.dq, &attention.dk, &attention.dv})
    EXPECT_TRUE(
        std::all_of(values->begin(), values->end(), [](float x) { return std::isfinite(x); }));
}

TEST(CpuAttentionForward, LaterTokensDoNotMatter) {
  const AttentionShape shape{.batch = 1, .sequence = 130, .heads = 2, .kv_heads = 1, .head_dim = 8};
  constexpr int64_t kCut = 101;  // in the middle of a pair
  for (const Types& types : kTypes) {
    SCOPED_TRACE(NameOf(types));
    Attention attention(shape, 1, types), changed(shape, 1, types);
    const int64_t cut = kCut * shape.head_dim;  // of the only key head
    std::fill(changed.k.begin() + cut, changed.k.end(), 7.0F);
    std::fill(changed.v.begin() + cut, changed.v.end(), -9.0F);
    const Ops& ops = testing::TestedOps();
    attention.Run(ops);
    changed.Run(ops);
    const auto before = [&](const Attention& a) {
      return std::vector<float>(a.out.begin(), a.out.begin() + kCut * shape.heads * shape.head_dim);
    };
    EXPECT_EQ(before(attention), before(changed));
  }
}

TEST(CpuAttentionBackward, TheNumberOfThreadsDoesNotChangeABit) {
  const AttentionShape shape{
      .batch = 2, .sequence = 150, .heads = 4, .kv_heads = 2, .head_dim = 32};
  const int threads_before = omp_get_max_threads();
  for (const Types& types : kTypes) {
    Attention one(shape, 1, types), three(shape, 1, types);
    const Ops& ops = testing::TestedOps();
    omp_set_num_threads(1);
    one.Run(ops);
    omp_set_num_threads(3);
    three.Run(ops);
    omp_set_num_threads(threads_before);
    EXPECT_EQ(one.out, three.out);
    EXPECT_EQ(one.dq, three.dq);
    EXPECT_EQ(one.dk, three.dk);
    EXPECT_EQ(one.dv, three.dv);
  }
}

}  // namespace
}  // namespace twinstream::testing
