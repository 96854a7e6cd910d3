// A pipeline stage may end between a site's write and its read: what one call does, two do to the
// last bit.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/residual_cases.h"
#include "tests/testing/residual_run.h"
#include "tests/testing/tested_ops.h"

namespace twinstream {
namespace {

using testing::Floats;
using testing::ResidualCase;
using testing::SiteRun;

constexpr auto kOwnMemory = SiteRun::OutputGradient::kOwnMemory;

void WriteAlone(SiteRun& run, const ResidualSite& site) {
  run.site = site;
  run.site.read = nullptr;
}

void ReadAlone(SiteRun& run, const ResidualSite& site) {
  run.site = site;
  run.site.read_before = nullptr;
  run.site.write = nullptr;
}

void ForwardInTwo(SiteRun& run) {
  const ResidualSite site = run.site;
  WriteAlone(run, site);
  run.Forward(false);
  run.x = run.x_out;
  run.y = run.y_out;
  run.x_out.clear();
  run.y_out.clear();
  ReadAlone(run, site);
  run.Forward(false);
  run.site = site;
}

void BackwardInTwo(SiteRun& run) {
  const ResidualSite site = run.site;
  ReadAlone(run, site);
  run.Backward(kOwnMemory);
  const Floats dx_weight = run.dx_weight, dy_weight = run.dy_weight, dinput = run.dinput_weight,
               h = run.h_again;
  WriteAlone(run, site);
  run.Backward(kOwnMemory);
  run.site = site;
  run.dx_weight = dx_weight;
  run.dy_weight = dy_weight;
  run.dinput_weight = dinput;
  run.h_again = h;
}

void TestSplit(const ResidualCase& c, int64_t N, int64_t C, DType dtype) {
  SiteRun one(c, N, C, dtype), two(c, N, C, dtype);
  one.Forward(false);
  ForwardInTwo(two);
  EXPECT_EQ(one.x_out, two.x_out);
  EXPECT_EQ(one.y_out, two.y_out);
  EXPECT_EQ(one.h, two.h);
  one.Backward(kOwnMemory);
  BackwardInTwo(two);
  EXPECT_EQ(one.h_again, two.h_again);
  EXPECT_EQ(one.dx, two.dx);
  EXPECT_EQ(one.dy, two.dy);
  EXPECT_EQ(one.d_o, two.d_o);
  EXPECT_EQ(one.dx_weight, two.dx_weight);
  EXPECT_EQ(one.dy_weight, two.dy_weight);
  EXPECT_EQ(one.dinput_weight, two.dinput_weight);
  EXPECT_EQ(one.doutput_weight, two.doutput_weight);
}

TEST(ResidualSplitTest, TwoCallsGiveTheBitsOfOne) {
  int sites = 0;
  for (const testing::ResidualScheme& scheme : testing::ResidualSchemes()) {
    for (const ResidualCase& c : testing::CasesOf(scheme)) {
      if (c.site.write == nullptr || c.site.read == nullptr) continue;
      ++sites;
      for (DType dtype : testing::kActivationTypes) {
        SCOPED_TRACE(absl::StrCat(c.name, " ", NameOf(dtype)));
        TestSplit(c, 5, 33, dtype);
        TestSplit(c, 3, 256, dtype);
      }
    }
  }
  EXPECT_GE(sites, 20);
}

}  // namespace
}  // namespace twinstream
