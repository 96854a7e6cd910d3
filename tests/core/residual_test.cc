// Every site of every residual scheme (docs/residual.md) against the double reference.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/device.h"
#include "tests/testing/near.h"
#include "tests/testing/reference_residual.h"
#include "tests/testing/residual_cases.h"
#include "tests/testing/residual_run.h"
#include "tests/testing/tested_ops.h"
#include "tests/testing/vectors.h"

namespace twinstream {
namespace {

using testing::ResidualInputs;
using testing::ResidualOutputs;
using Case = testing::ResidualCase;
using Scheme = testing::ResidualScheme;
using testing::CasesOf;
using X = ResidualRead::X;
using Y = ResidualWrite::Y;
using testing::Doubles;
using testing::Floats;
using testing::SiteRun;
using testing::TensorOf;
using testing::Wide;

void ExpectNear(const Floats& actual, const Doubles& expected, double tolerance, const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  EXPECT_LE(testing::RelativeError(actual, expected), tolerance) << what;
}

Floats WithoutOld(Floats gradient) {
  for (float& v : gradient) v -= SiteRun::kOld;
  return gradient;
}

void TestForward(const Case& c, int64_t N, int64_t C, bool in_place, DType dtype) {
  SiteRun run(c, N, C, dtype);
  run.Forward(in_place);
  const ResidualOutputs expected = testing::ReferenceResidual(c.site, run.reference);
  const double once = testing::Tolerance(dtype, C);
  ExpectNear(run.x_out, expected.x, once, "x");
  ExpectNear(run.y_out, expected.y, once, "y");
  // h is rounded, and so are the streams that it is read from.
  ExpectNear(run.h, expected.h, testing::Tolerance(dtype, C, 3), "h");
}

void TestBackward(const Case& c, int64_t N, int64_t C, SiteRun::OutputGradient where, DType dtype) {
  SiteRun run(c, N, C, dtype);
  // The streams are rounded where they are stored, a gradient after the read and after the write.
  const double tolerance = testing::Tolerance(dtype, C, 4);
  const ResidualInputs expected = testing::ReferenceResidualGradients(
      c.site, run.reference, Wide(run.dx), Wide(run.dy), Wide(run.dh));
  run.Forward(false);
  if (c.site.read != nullptr && c.site.read->x == X::kNone && !UsesXWeight(*c.site.read) &&
      !c.site.read->input_norm && where == SiteRun::OutputGradient::kOwnMemory) {
    run.x_out.clear();  // nobody asks for it
  }
  run.Backward(where);
  ExpectNear(run.dx, expected.base, tolerance, "dx");
  if (c.y_before) {
    ExpectNear(run.dy, expected.y, tolerance, "dy");
  } else if (c.y_after) {
    EXPECT_EQ(run.dy, Floats(run.dy.size(), 0)) << "gradient of a y that was not read";
  }
  ExpectNear(run.d_o, expected.o, tolerance, "d_o");
  ExpectNear(run.h_again, Wide(run.h), testing::Tolerance(dtype, C), "h");
  ExpectNear(WithoutOld(run.dx_weight), expected.x_weight, tolerance, "dx_weight");
  ExpectNear(WithoutOld(run.dy_weight), expected.y_weight, tolerance, "dy_weight");
  ExpectNear(WithoutOld(run.dinput_weight), expected.input_weight, tolerance, "dinput_weight");
  ExpectNear(WithoutOld(run.doutput_weight), expected.output_weight, tolerance, "doutput_weight");
}

TEST(ResidualTest, EverySiteOfEverySchemeMatchesTheReferenceForward) {
  for (const Scheme& scheme : testing::ResidualSchemes()) {
    for (const Case& c : CasesOf(scheme)) {
      for (bool in_place : {false, true}) {
        for (DType dtype : testing::kActivationTypes) {
          SCOPED_TRACE(absl::StrCat(c.name, in_place ? ", in place " : " ", NameOf(dtype)));
          TestForward(c, 5, 33, in_place, dtype);
          TestForward(c, 3, 256, in_place, dtype);
        }
      }
    }
  }
}

TEST(ResidualTest, EverySiteOfEverySchemeMatchesTheReferenceBackward) {
  for (const Scheme& scheme : testing::ResidualSchemes()) {
    for (const Case& c : CasesOf(scheme)) {
      for (DType dtype : testing::kActivationTypes) {
        SCOPED_TRACE(absl::StrCat(c.name, " ", NameOf(dtype)));
        TestBackward(c, 3, 33, SiteRun::OutputGradient::kOwnMemory, dtype);
        TestBackward(c, 3, 33, SiteRun::OutputGradient::kOverX, dtype);
        TestBackward(c, 3, 33, SiteRun::OutputGradient::kOverDh, dtype);
      }
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
          for (DType dtype : testing::kActivationTypes) {
            TestForward(c, 2, 19, false, dtype);
            TestBackward(c, 2, 19, SiteRun::OutputGradient::kOverDh, dtype);
          }
        }
      }
    }
  }
}

TEST(ResidualTest, ARealisticWidthMatchesTheReferenceBackward) {
  const Scheme scheme = testing::ResidualSchemes().back();
  ASSERT_EQ(scheme.name, "SIAMESE_HYBRID_PRE");
  for (const Case& c : CasesOf(scheme)) {
    SCOPED_TRACE(c.name);
    for (DType dtype : testing::kActivationTypes) {
      TestBackward(c, 1, 256, SiteRun::OutputGradient::kOwnMemory, dtype);
    }
  }
}

// Widths between which kernels change their ways, with more rows than run at a time: too many for
// the reference, whose gradients are finite differences.
TEST(ResidualTest, WideRowsAreThoseOfTheCpu) {
  const ResidualRead read = {.x = X::kBase, .base_norm = true, .y = true, .input_norm = true};
  const ResidualWrite write = {1.5F, 0.75F, Y::kAdd, /*output_norm=*/true};
  const Case c = {"", {.read_before = &read, .write = &write, .read = &read}, true, true};
  const std::unique_ptr<Device> cpu = MakeDevice("cpu").value();
  for (int64_t C : {1032, 2051, 2064}) {
    for (DType dtype : testing::kActivationTypes) {
      SCOPED_TRACE(absl::StrCat(C, " ", NameOf(dtype)));
      SiteRun run(c, 9, C, dtype), expected(c, 9, C, dtype);
      expected.ops = &cpu->ops();
      for (SiteRun* each : {&run, &expected}) {
        each->Forward(false);
        each->Backward(SiteRun::OutputGradient::kOwnMemory);
      }
      const double tolerance = testing::Tolerance(dtype, C, 4);
      for (Floats SiteRun::*result :
           {&SiteRun::x_out, &SiteRun::y_out, &SiteRun::h, &SiteRun::dx, &SiteRun::dy,
            &SiteRun::d_o, &SiteRun::h_again, &SiteRun::dx_weight, &SiteRun::dy_weight,
            &SiteRun::dinput_weight, &SiteRun::doutput_weight}) {
        ExpectNear(run.*result, Wide(expected.*result), tolerance, "a result");
      }
    }
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
    EXPECT_NEAR(run.scales[static_cast<size_t>(kScaleX * int64_t{2} + n)],
                1 / std::sqrt(x_squares / 64 + 1e-5), 1e-6);
    EXPECT_NEAR(run.scales[static_cast<size_t>(kScaleY * int64_t{2} + n)],
                1 / std::sqrt(y_squares / 64 + 1e-5), 1e-6);
  }
}

// Rows do not depend on threads at all; sums of weight gradients only in their last bits, and not
// from run to run.
TEST(ResidualTest, ThreadsChangeNoRow) {
  const Scheme scheme = testing::ResidualSchemes().back();
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
  ExpectNear(three.dinput_weight, Wide(one.dinput_weight), testing::Float32Tolerance(kRows),
             "dinput_weight");
  ExpectNear(three.dy_weight, Wide(one.dy_weight), testing::Float32Tolerance(kRows), "dy_weight");
}

TEST(ResidualTest, NoRowsAreNoWork) {
  const Scheme scheme = testing::ResidualSchemes().front();
  const ResidualSite site = CasesOf(scheme)[0].site;
  Floats some(64), weight(8, 1.0F);
  const Tensor none = TensorOf(some, {0, 8});
  ResidualForwardTensors t;
  t.x = t.h = none;
  t.x_weight = TensorOf(weight, {8});
  t.scales = TensorOf(some, {kResidualScales, 0});
  testing::TestedOps().ResidualForward(site, t);
  EXPECT_EQ(some, Floats(64));
}

}  // namespace
}  // namespace twinstream
