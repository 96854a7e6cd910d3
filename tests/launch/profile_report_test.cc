#include "launch/profile_report.h"

#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace twinstream {
namespace {

using std::chrono::microseconds;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr Ceilings kCeilings = {.f32_flops = 100e9, .bf16_flops = 200e9, .bandwidth = 10e9};

const OpKey kProduct = {.op = "product nt", .m = 512, .n = 1376, .k = 256};
const OpKey kExperts = {
    .op = "product nn", .dtype = DType::kBF16, .m = OpKey::kVarying, .n = 8, .k = 16};
const OpKey kResidual = {.op = "residual forward", .dtype = DType::kBF16};

// One step of 10 ms or more, of it 6 ms in operations.
void Fill(OpProfile* profile) {
  profile->BeginStep();
  profile->Add(kProduct, {.flops = 1e8, .bytes = 1e6}, microseconds(2000));  // floor 1 ms
  profile->Add(kExperts, {.flops = 1e8, .bytes = 1e6}, microseconds(1000));  // floor 0.5 ms
  profile->Add(kResidual, {.bytes = 2e7}, microseconds(3000));               // floor 2 ms
  std::this_thread::sleep_for(microseconds(10000));
  profile->EndStep();
}

TEST(Ceilings, AFloorIsOfArithmeticOrOfMemoryWhicheverTakesLonger) {
  const auto floor = [](DType dtype, OpWork work) {
    return kCeilings.FloorSeconds({.key = {.op = "", .dtype = dtype}, .work = work});
  };
  EXPECT_DOUBLE_EQ(floor(DType::kF32, {.flops = 100e9, .bytes = 1}), 1);
  EXPECT_DOUBLE_EQ(floor(DType::kBF16, {.flops = 100e9, .bytes = 1}), 0.5);
  EXPECT_DOUBLE_EQ(floor(DType::kF32, {.flops = 100e9, .bytes = 20e9}), 2);
}

TEST(ProfileTable, HasTheCostliestFirstThenTheSumAndTheRest) {
  OpProfile profile;
  Fill(&profile);
  const std::vector<std::string> lines = absl::StrSplit(ProfileTable(profile, kCeilings), '\n');
  ASSERT_EQ(lines.size(), 8);
  EXPECT_EQ(lines[0], "");
  EXPECT_THAT(lines[1], HasSubstr(absl::StrFormat("Profile of rank 0: 1 steps, %.3f s each",
                                                  profile.step_seconds())));
  EXPECT_THAT(lines[1], HasSubstr("products 100.0 GFLOP/s (bf16 200.0), memory 10.0 GB/s."));
  EXPECT_THAT(lines[3], MatchesRegex("residual forward BF16 +1 +0\\.003 .* % +6\\.7 GB/s "
                                     "+0\\.002 +67 %"));
  EXPECT_THAT(lines[4], MatchesRegex("product nt 512x1376x256 F32 +1 +0\\.002 .* % +50\\.0 GFLOP/s "
                                     "+0\\.001 +50 %"));
  EXPECT_THAT(lines[5], MatchesRegex("product nn \\*x8x16 BF16 +1 +0\\.001 .* % +100\\.0 GFLOP/s "
                                     "+0\\.001 +50 %"));  // 0.0005 to three digits
  EXPECT_THAT(lines[6], MatchesRegex("all operations +3 +0\\.006 .* % +0\\.004 +58 %"));
  EXPECT_THAT(lines[7], MatchesRegex("outside: waiting, messages, host +[0-9.]+ .* %"));
  for (const std::string& line : lines) EXPECT_LE(line.size(), 120) << line;
}

TEST(ProfileTable, SaysThatTheFirstStepIsLeftOut) {
  OpProfile profile;
  for (int step = 0; step < 3; ++step) Fill(&profile);
  EXPECT_THAT(ProfileTable(profile, kCeilings),
              HasSubstr(absl::StrFormat("2 steps after the first, %.3f s each",
                                        profile.step_seconds() / 2)));
}

TEST(ProfileJson, HoldsTheSameNumbers) {
  OpProfile profile;
  Fill(&profile);
  const nlohmann::json json = nlohmann::json::parse(ProfileJson(profile, kCeilings));
  EXPECT_EQ(json["rank"], 0);
  EXPECT_EQ(json["steps"], 1);
  EXPECT_NEAR(json["step_seconds"], profile.step_seconds(), 1e-9);
  EXPECT_DOUBLE_EQ(json["operation_seconds"], 0.006);
  EXPECT_EQ(json["f32_flops_per_second"], 100e9);
  EXPECT_EQ(json["bf16_flops_per_second"], 200e9);
  EXPECT_EQ(json["bytes_per_second"], 10e9);
  ASSERT_EQ(json["operations"].size(), 3);
  EXPECT_EQ(json["operations"][1], nlohmann::json({{"op", "product nt"},
                                                   {"dtype", "F32"},
                                                   {"m", 512},
                                                   {"n", 1376},
                                                   {"k", 256},
                                                   {"calls", 1},
                                                   {"seconds", 0.002},
                                                   {"flops", 1e8},
                                                   {"bytes", 1e6},
                                                   {"floor_seconds", 0.001}}));
  EXPECT_EQ(json["operations"][2]["m"], OpKey::kVarying);
}

}  // namespace
}  // namespace twinstream
