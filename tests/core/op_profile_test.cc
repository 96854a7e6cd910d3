#include "core/op_profile.h"

#include <thread>

#include "gtest/gtest.h"

namespace twinstream {
namespace {

using std::chrono::milliseconds;

TEST(OpProfile, AddsUpTheCallsOfAKey) {
  OpProfile profile;
  const OpKey product = {.op = "product nt", .m = 2, .n = 3, .k = 5};
  profile.Add(product, {.flops = 60, .bytes = 100}, milliseconds(20));
  profile.Add({.op = "zero"}, {.bytes = 8}, milliseconds(1));
  profile.Add(product, {.flops = 60, .bytes = 100}, milliseconds(40));
  ASSERT_EQ(profile.rows().size(), 2);
  const OpRow& row = profile.rows()[0];
  EXPECT_EQ(row.key, product);
  EXPECT_EQ(row.calls, 2);
  EXPECT_DOUBLE_EQ(row.seconds, 0.06);
  EXPECT_EQ(row.work.flops, 120);
  EXPECT_EQ(row.work.bytes, 200);
}

TEST(OpProfile, KeysDifferInEveryPart) {
  const OpKey key = {.op = "product nt", .dtype = DType::kF32, .m = 1, .n = 2, .k = 3};
  OpProfile profile;
  profile.Add(key, {}, milliseconds(1));
  for (int part = 0; part < 5; ++part) {
    OpKey other = key;
    if (part == 0) other.op = "product nn";
    if (part == 1) other.dtype = DType::kBF16;
    if (part >= 2) (part == 2 ? other.m : part == 3 ? other.n : other.k) = 7;
    profile.Add(other, {}, milliseconds(1));
    EXPECT_EQ(static_cast<int>(profile.rows().size()), part + 2);
  }
}

TEST(OpProfile, ShapesBeyondItsSizeShareTheLastRow) {
  OpProfile profile;
  const OpRow* const memory = profile.rows().data();
  const int64_t shapes = static_cast<int64_t>(OpProfile::kMostRows) + 10;
  for (int64_t m = 1; m <= shapes; ++m) {
    profile.Add({.op = "product nt", .m = m, .n = 1, .k = 1}, {.flops = 1}, milliseconds(1));
  }
  EXPECT_EQ(profile.rows().size(), OpProfile::kMostRows);
  EXPECT_EQ(profile.rows().data(), memory);
  EXPECT_EQ(profile.rows().back().key.op, "other shapes");
  EXPECT_EQ(profile.rows().back().calls, 11);
  EXPECT_EQ(profile.rows().back().work.flops, 11);
}

TEST(OpProfile, TheFirstStepIsForgottenOnceThereIsAnother) {
  OpProfile profile;
  OpProfile::Clock::time_point second_step;
  for (int step = 1; step <= 3; ++step) {
    if (step == 2) second_step = OpProfile::Clock::now();
    profile.BeginStep();
    profile.Add({.op = "zero"}, {}, milliseconds(step));
    std::this_thread::sleep_for(milliseconds(1));
    profile.EndStep();
    EXPECT_EQ(profile.steps(), step == 1 ? 1 : step - 1);
    EXPECT_EQ(profile.forgot_first_step(), step > 1);
  }
  EXPECT_DOUBLE_EQ(profile.rows()[0].seconds, 0.002 + 0.003);
  EXPECT_GT(profile.step_seconds(), 0.002);
  const std::chrono::duration<double> all_but_the_first = OpProfile::Clock::now() - second_step;
  EXPECT_LE(profile.step_seconds(), all_but_the_first.count());
}

TEST(OpProfile, RecordsTheThreadOfTheStepAlone) {
  OpProfile profile;
  EXPECT_FALSE(profile.IsRecording());
  profile.BeginStep();
  EXPECT_TRUE(profile.IsRecording());
  std::thread([&] { EXPECT_FALSE(profile.IsRecording()); }).join();
  profile.EndStep();
  EXPECT_FALSE(profile.IsRecording());
}

}  // namespace
}  // namespace twinstream
