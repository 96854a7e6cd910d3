// Every site of every residual scheme (docs/residual.md) against the double reference.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/cpu/ops.h"
#include "tests/testing/near.h"
#include "tests/testing/reference_residual.h"

namespace twinstream {
namespace {

using testing::ResidualInputs;
using testing::ResidualOutputs;
using X = ResidualRead::X;
using Y = ResidualWrite::Y;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;

struct Unit {
  ResidualRead read;
  ResidualWrite write;
};

struct Scheme {
  std::string name;
  bool y_from_the_start = false;
  std::vector<Unit> units;  // attention and MLP of the first layers
  ResidualRead final;
};

std::vector<Scheme> Schemes() {
  const ResidualRead norm = {.x = X::kNorm}, base = {.x = X::kBase};
  const ResidualRead normed_base = {.x = X::kBase, .base_norm = true};
  const ResidualRead final_sum = {.x = X::kBase, .base_norm = true, .y = true};
  const ResidualRead final_normed_sum = {
      .x = X::kBase, .base_norm = true, .y = true, .input_norm = true};
  const ResidualWrite add = {}, deep = {.base_gain = 1.68F}, both = {.y = Y::kAdd};
  const ResidualWrite siamese0 = {.x_gain = 0.70710678F, .y = Y::kAdd};
  const ResidualWrite siamese1 = {.x_gain = 0.5F, .y = Y::kAdd};
  const Unit span_mlp = {{.x = X::kNone, .y = true}, {}};
  const ResidualWrite span = {.x_gain = 0, .y = Y::kSet};
  const Unit peri = {{.x = X::kBase, .input_norm = true}, {.output_norm = true}};
  const ResidualRead post_to_pre = {.x = X::kBase, .base_norm = true, .input_norm = true};
  const ResidualRead hybrid0 = {.x = X::kNorm, .y = true}, hybrid1 = {.x = X::kScale, .y = true};
  return {
      {"PRE_NORM", false, {{norm, add}, {norm, add}}, norm},
      {"POST_NORM", false, {{base, add}, {normed_base, add}}, normed_base},
      {"DEEP_NORM", false, {{base, deep}, {normed_base, deep}}, normed_base},
      {"HYBRID_NORM", false, {{norm, add}, {normed_base, add}, {base, add}}, norm},
      {"SPAN_NORM", false, {{norm, span}, span_mlp, {normed_base, span}, span_mlp}, normed_base},
      {"PERI_NORM", false, {peri, peri}, norm},
      {"MIX_LN", false, {{base, add}, {normed_base, add}, {post_to_pre, add}, {norm, add}}, norm},
      {"RESI_DUAL", true, {{base, both}, {normed_base, both}}, final_sum},
      {"SIAMESE_POST_PRE",
       true,
       {{final_normed_sum, siamese0}, {final_normed_sum, siamese1}},
       final_normed_sum},
      {"SIAMESE_HYBRID_PRE",
       true,
       {{hybrid0, siamese0}, {final_normed_sum, siamese0}, {hybrid1, siamese1}},
       final_normed_sum},
  };
}

// One site, and which streams it has.
struct Case {
  std::string name;
  ResidualSite site;
  bool y_before, y_after;
};

// Of every unit: its read alone, its write alone, and its write with the next read.
std::vector<Case> CasesOf(const Scheme& scheme) {
  std::vector<Case> cases;
  bool y = scheme.y_from_the_start;
  for (size_t k = 0; k < scheme.units.size(); ++k) {
    const Unit& unit = scheme.units[k];
    const ResidualRead* const next =
        k + 1 < scheme.units.size() ? &scheme.units[k + 1].read : &scheme.final;
    const bool y_after = y || unit.write.y == Y::kSet;
    const std::string name = scheme.name + " unit " + std::to_string(k);
    cases.push_back({name + " read", {.read = &unit.read}, y, y});
    cases.push_back(
        {name + " write", {.read_before = &unit.read, .write = &unit.write}, y, y_after});
    cases.push_back({name + " write and read",
                     {.read_before = &unit.read, .write = &unit.write, .read = next},
                     y,
                     y_after});
    y = y_after;
  }
  cases.push_back({scheme.name + " final", {.read = &scheme.final}, y, y});
  return cases;
}

Tensor TensorOf(Floats& values, const Shape& shape) {
  if (values.empty()) return Tensor();
  return Tensor(reinterpret_cast<std::byte*>(values.data()), DType::kF32, shape);
}

Doubles Wide(const Floats& values) { return Doubles(values.begin(), values.end()); }

// The float side of a case: random inputs, and memory for what the ops write.
struct SiteRun {
  SiteRun(const Case& c, int64_t rows, int64_t columns) : site(c.site), N(rows), C(columns) {
    const ResidualRead none;
    const ResidualRead& read = site.read != nullptr ? *site.read : none;
    const bool write = site.write != nullptr;
    x = Random(N * C, 0);
    if (c.y_before) y = Random(N * C, 0);
    if (write) o = Random(N * C, 0);
    if (write && site.read_before->base_norm) x_weight_before = Random(C, 1);
    if (write && site.write->output_norm) output_weight = Random(C, 1);
    if (read.base_norm || read.x == X::kNorm || read.x == X::kScale) x_weight = Random(C, 1);
    if (read.y) y_weight = Random(C, 1);
    if (read.input_norm) input_weight = Random(C, 1);
    dx = Random(N * C, 0);
    if (c.y_after) dy = Random(N * C, 0);
    if (site.read != nullptr) dh = Random(N * C, 0);
    scales_before.resize(static_cast<size_t>(kResidualScales * N));
    for (int64_t n = 0; n < N; ++n) {
      double sum = 0;
      for (int64_t j = 0; j < C; ++j) sum += std::pow(x[static_cast<size_t>(n * C + j)], 2);
      scales_before[static_cast<size_t>(n)] =
          static_cast<float>(1 / std::sqrt(sum / static_cast<double>(C) + site.eps));
    }
    reference.base = Wide(x);
    if (!x_weight_before.empty())
      reference.base = testing::ReferenceNorm(Wide(x), Wide(x_weight_before), site.eps);
    reference.y = Wide(y);
    reference.o = Wide(o);
    reference.output_weight = Wide(output_weight);
    reference.x_weight = Wide(x_weight);
    reference.y_weight = Wide(y_weight);
    reference.input_weight = Wide(input_weight);
    const auto memory = [](bool exists, int64_t elements) {
      return Floats(exists ? static_cast<size_t>(elements) : 0, NAN);
    };
    x_out = memory(write, N * C);
    y_out = memory(write && c.y_after, N * C);
    h = memory(site.read != nullptr, N * C);
    scales = memory(true, kResidualScales * N);
  }

  // in_place: the streams are written where they were read.
  void Forward(bool in_place) {
    const Shape rows = {N, C};
    if (in_place && !x_out.empty()) x_out = x;
    if (in_place && !y_out.empty() && !y.empty()) y_out = y;
    const Tensor x_in = TensorOf(in_place && !x_out.empty() ? x_out : x, rows);
    const Tensor y_in = TensorOf(in_place && !y_out.empty() && !y.empty() ? y_out : y, rows);
    ops.ResidualForward(site, {.x = x_in,
                               .y = y_in,
                               .o = TensorOf(o, rows),
                               .x_weight_before = TensorOf(x_weight_before, {C}),
                               .scales_before = TensorOf(scales_before, {kResidualScales, N}),
                               .output_weight = TensorOf(output_weight, {C}),
                               .x_out = TensorOf(x_out, rows),
                               .y_out = TensorOf(y_out, rows),
                               .x_weight = TensorOf(x_weight, {C}),
                               .y_weight = TensorOf(y_weight, {C}),
                               .input_weight = TensorOf(input_weight, {C}),
                               .scales = TensorOf(scales, {kResidualScales, N}),
                               .h = TensorOf(h, rows)});
    if (x_out.empty()) x_out = x;
    if (y_out.empty()) y_out = y;
  }

  enum class OutputGradient { kOwnMemory, kOverX, kOverDh };

  // Weight gradients start from kOld.
  static constexpr float kOld = 0.25F;
  void Backward(OutputGradient where) {
    const Shape rows = {N, C};
    const auto old = [](const Floats& weight) { return Floats(weight.size(), kOld); };
    dx_weight = old(x_weight), dy_weight = old(y_weight);
    dinput_weight = old(input_weight), doutput_weight = old(output_weight);
    if (site.write != nullptr) d_o.assign(x.size(), NAN);
    Floats& d_o_memory = where == OutputGradient::kOverX                   ? x_out
                         : where == OutputGradient::kOverDh && !dh.empty() ? dh
                                                                           : d_o;
    ops.ResidualBackward(site,
                         {.dx = TensorOf(dx, rows),
                          .dy = TensorOf(dy, rows),
                          .dh = TensorOf(dh, rows),
                          .x = TensorOf(x_out, rows),
                          .y = TensorOf(y_out, rows),
                          .x_weight = TensorOf(x_weight, {C}),
                          .y_weight = TensorOf(y_weight, {C}),
                          .input_weight = TensorOf(input_weight, {C}),
                          .scales = TensorOf(scales, {kResidualScales, N}),
                          .dx_weight = TensorOf(dx_weight, {C}),
                          .dy_weight = TensorOf(dy_weight, {C}),
                          .dinput_weight = TensorOf(dinput_weight, {C}),
                          .o = TensorOf(o, rows),
                          .output_weight = TensorOf(output_weight, {C}),
                          .doutput_weight = TensorOf(doutput_weight, {C}),
                          .d_o = site.write != nullptr ? TensorOf(d_o_memory, rows) : Tensor()});
    if (site.write != nullptr) d_o = d_o_memory;
  }

  Floats Random(int64_t elements, float mean) {
    std::normal_distribution<float> normal(mean, mean == 0 ? 1.0F : 0.3F);
    Floats values(static_cast<size_t>(elements));
    for (float& v : values) v = normal(generator);
    return values;
  }

  ResidualSite site;
  int64_t N, C;
  std::mt19937 generator{11};
  CpuOps ops;
  Floats x, y, o, x_weight_before, output_weight, x_weight, y_weight, input_weight, scales_before;
  Floats x_out, y_out, h, scales;
  Floats dx, dy, dh, d_o, dx_weight, dy_weight, dinput_weight, doutput_weight;
  ResidualInputs reference;
};

void ExpectNear(const Floats& actual, const Doubles& expected, int64_t C, const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  EXPECT_LE(testing::RelativeError(actual, expected), testing::Float32Tolerance(C)) << what;
}

Floats WithoutOld(Floats gradient) {
  for (float& v : gradient) v -= SiteRun::kOld;
  return gradient;
}

void TestForward(const Case& c, int64_t N, int64_t C, bool in_place) {
  SiteRun run(c, N, C);
  run.Forward(in_place);
  const ResidualOutputs expected = testing::ReferenceResidual(c.site, run.reference);
  ExpectNear(run.x_out, expected.x, C, "x");
  ExpectNear(run.y_out, expected.y, C, "y");
  ExpectNear(run.h, expected.h, C, "h");
}

void TestBackward(const Case& c, int64_t N, int64_t C, SiteRun::OutputGradient where) {
  SiteRun run(c, N, C);
  const ResidualInputs expected = testing::ReferenceResidualGradients(
      c.site, run.reference, Wide(run.dx), Wide(run.dy), Wide(run.dh));
  run.Forward(false);
  run.Backward(where);
  ExpectNear(run.dx, expected.base, C, "dx");
  if (c.y_before) {
    ExpectNear(run.dy, expected.y, C, "dy");
  } else if (c.y_after) {
    EXPECT_EQ(run.dy, Floats(run.dy.size(), 0)) << "gradient of a y that was not read";
  }
  ExpectNear(run.d_o, expected.o, C, "d_o");
  ExpectNear(WithoutOld(run.dx_weight), expected.x_weight, C, "dx_weight");
  ExpectNear(WithoutOld(run.dy_weight), expected.y_weight, C, "dy_weight");
  ExpectNear(WithoutOld(run.dinput_weight), expected.input_weight, C, "dinput_weight");
  ExpectNear(WithoutOld(run.doutput_weight), expected.output_weight, C, "doutput_weight");
}

TEST(ResidualTest, EverySiteOfEverySchemeMatchesTheReferenceForward) {
  for (const Scheme& scheme : Schemes()) {
    for (const Case& c : CasesOf(scheme)) {
      for (bool in_place : {false, true}) {
        SCOPED_TRACE(c.name + (in_place ? ", in place" : ""));
        TestForward(c, 5, 33, in_place);
        TestForward(c, 3, 256, in_place);
      }
    }
  }
}

TEST(ResidualTest, EverySiteOfEverySchemeMatchesTheReferenceBackward) {
  for (const Scheme& scheme : Schemes()) {
    for (const Case& c : CasesOf(scheme)) {
      SCOPED_TRACE(c.name);
      TestBackward(c, 3, 33, SiteRun::OutputGradient::kOwnMemory);
      TestBackward(c, 3, 33, SiteRun::OutputGradient::kOverX);
      TestBackward(c, 3, 33, SiteRun::OutputGradient::kOverDh);
    }
  }
}

// The schemes use a part of what the flags can say.
TEST(ResidualTest, EveryCombinationOfFlagsMatchesTheReference) {
  std::vector<ResidualRead> reads;
  for (X x : {X::kNone, X::kBase, X::kNorm, X::kScale}) {
    for (bool base_norm : {false, true}) {
      if (base_norm && (x == X::kNorm || x == X::kScale)) continue;
      for (bool input_norm : {false, true}) {
        reads.push_back({x, base_norm, true, input_norm});
        if (x != X::kNone) reads.push_back({x, base_norm, false, input_norm});
      }
    }
  }
  const ResidualRead plain = {.x = X::kBase}, normed = {.x = X::kBase, .base_norm = true};
  for (const ResidualRead& read : reads) {
    for (const ResidualRead* before : {&plain, &normed}) {
      for (Y y : {Y::kKeep, Y::kAdd, Y::kSet}) {
        for (bool output_norm : {false, true}) {
          const ResidualWrite write = {1.5F, 0.75F, y, output_norm};
          const Case c = {"", {.read_before = before, .write = &write, .read = &read}, true, true};
          SCOPED_TRACE(absl::StrCat("x ", static_cast<int>(read.x), " base_norm ", read.base_norm,
                                    " y ", read.y, " input_norm ", read.input_norm, " write y ",
                                    static_cast<int>(y), " output_norm ", output_norm));
          TestForward(c, 2, 19, false);
          TestBackward(c, 2, 19, SiteRun::OutputGradient::kOverDh);
        }
      }
    }
  }
}

TEST(ResidualTest, ARealisticWidthMatchesTheReferenceBackward) {
  const Scheme scheme = Schemes().back();
  ASSERT_EQ(scheme.name, "SIAMESE_HYBRID_PRE");
  for (const Case& c : CasesOf(scheme)) {
    SCOPED_TRACE(c.name);
    TestBackward(c, 1, 256, SiteRun::OutputGradient::kOwnMemory);
  }
}

TEST(ResidualTest, ScalesAreTheInverseRootMeanSquares) {
  const ResidualRead read = {.x = X::kBase, .base_norm = true, .y = true, .input_norm = true};
  SiteRun run({"", {.read = &read}, true, true}, 2, 64);
  run.Forward(false);
  for (int64_t n = 0; n < 2; ++n) {
    double x_squares = 0, y_squares = 0;
    for (size_t j = 0; j < 64; ++j) {
      x_squares += std::pow(run.x[static_cast<size_t>(n) * 64 + j], 2);
      y_squares += std::pow(run.y[static_cast<size_t>(n) * 64 + j], 2);
    }
    EXPECT_NEAR(run.scales[static_cast<size_t>(kScaleX * 2 + n)],
                1 / std::sqrt(x_squares / 64 + 1e-5), 1e-6);
    EXPECT_NEAR(run.scales[static_cast<size_t>(kScaleY * 2 + n)],
                1 / std::sqrt(y_squares / 64 + 1e-5), 1e-6);
  }
}

// Rows do not depend on threads at all; sums of weight gradients only in their last bits, and not
// from run to run.
TEST(ResidualTest, ThreadsChangeNoRow) {
  const Scheme scheme = Schemes().back();
  const Case c = CasesOf(scheme)[2];
  constexpr int64_t kRows = 61, kColumns = 256;
  const auto run_on = [&](int threads) {
    omp_set_num_threads(threads);
    SiteRun run(c, kRows, kColumns);
    run.Forward(false);
    run.Backward(SiteRun::OutputGradient::kOwnMemory);
    omp_set_num_threads(1);
    return run;
  };
  const SiteRun one = run_on(1), three = run_on(3), again = run_on(3);
  EXPECT_EQ(one.h, three.h);
  EXPECT_EQ(one.x_out, three.x_out);
  EXPECT_EQ(one.dx, three.dx);
  EXPECT_EQ(one.dy, three.dy);
  EXPECT_EQ(one.d_o, three.d_o);
  EXPECT_EQ(three.dinput_weight, again.dinput_weight);
  EXPECT_EQ(three.dx_weight, again.dx_weight);
  ExpectNear(three.dinput_weight, Wide(one.dinput_weight), kRows, "dinput_weight");
  ExpectNear(three.dy_weight, Wide(one.dy_weight), kRows, "dy_weight");
}

TEST(ResidualTest, NoRowsAreNoWork) {
  const Scheme scheme = Schemes().front();
  const ResidualSite site = CasesOf(scheme)[0].site;
  Floats some(64), weight(8, 1.0F);
  const Tensor none = TensorOf(some, {0, 8});
  ResidualForwardTensors t;
  t.x = t.h = none;
  t.x_weight = TensorOf(weight, {8});
  t.scales = TensorOf(some, {kResidualScales, 0});
  CpuOps().ResidualForward(site, t);
  EXPECT_EQ(some, Floats(64));
}

}  // namespace
}  // namespace twinstream
