#include "launch/command_validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace twinstream {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A folder with a job of sequence 16 and vocabulary 64 and its token file.
class CommandValidateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "command_validate_test/";
    std::filesystem::create_directories(folder_);
    WriteTokens("a.bin", std::vector<uint16_t>(100, 7));
    WriteJob("");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + name; }

  void WriteTokens(const std::string& name, const std::vector<uint16_t>& tokens) const {
    std::ofstream file(Path(name), std::ios::binary);
    file.write(reinterpret_cast<const char*>(tokens.data()),
               static_cast<std::streamsize>(tokens.size() * sizeof(uint16_t)));
  }

  void WriteJob(const std::string& more) const {
    std::ofstream(Path("job.textproto"))
        << "model { layers: 2 hidden: 32 heads: 4 ffn: 48 vocabulary: 64 sequence: 16 }\n"
        << "data { train { path: '" << Path("a.bin") << "' } }\ntrain { steps: 8 }\n"
        << more;
  }

  absl::Status Validate(const std::vector<std::string>& overrides = {}, int ranks = 0) const {
    return CommandValidate(Path("job.textproto"), overrides, ranks);
  }

  std::string Error(const std::string& change, int ranks = 0) const {
    const absl::Status status = Validate({change}, ranks);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << change;
    return std::string(status.message());
  }

  std::string folder_;
};

TEST_F(CommandValidateTest, AGoodJobIsSummarised) {
  ::testing::internal::CaptureStdout();
  const absl::Status status = Validate({"train { microbatch: 3 }"}, 2);
  const std::string output = ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(output,
              AllOf(HasSubstr("job job is valid"), HasSubstr("SIAMESE_HYBRID_PRE, layers 2"),
                    HasSubstr("tensor 1, context 1, pipeline 1 (ONE_F_ONE_B), data 2"),
                    HasSubstr("8 steps x 6 sequences x 16 tokens = 768 tokens"),
                    HasSubstr("100 tokens in 6 windows, 8 epochs")));
}

TEST_F(CommandValidateTest, AnUnknownNumberOfRanksIsSaid) {
  ::testing::internal::CaptureStdout();
  EXPECT_TRUE(Validate().ok());
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              HasSubstr("data 1 (whatever is left of the ranks)"));
}

TEST_F(CommandValidateTest, MistakesOfJobAndFilesComeTogether) {
  const std::string error = Error(
      "parallel { tensor: 3 } optimizer { beta2: 2 } train { initial_weights: 'no/such' }"
      "data { validation { path: 'no/v.bin' } }",
      3);
  EXPECT_THAT(error, HasSubstr("has 4 mistakes:\n"));
  EXPECT_THAT(error, HasSubstr("parallel.tensor = 3 does not divide model.heads = 4"));
  EXPECT_THAT(error, HasSubstr("optimizer.beta2 = 2"));
  EXPECT_THAT(error, HasSubstr("train.initial_weights: cannot open no/such"));
  EXPECT_THAT(error, HasSubstr("data.validation[0].path \"no/v.bin\" "));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 4) << error;
}

TEST_F(CommandValidateTest, EveryKindOfBadTokenFileIsNamed) {
  WriteTokens("empty.bin", {});
  WriteTokens("short.bin", std::vector<uint16_t>(16, 1));
  std::ofstream(Path("odd.bin")) << std::string(101, '\1');
  std::vector<uint16_t> tokens(100, 7);
  tokens[50] = 64;
  WriteTokens("bad.bin", tokens);
  std::string data = "data {";
  for (const char* name : {"missing.bin", "empty.bin", "short.bin", "odd.bin"}) {
    data += " train { path: '" + Path(name) + "' }";
  }
  const std::string error = Error(data + "}");
  EXPECT_THAT(error, HasSubstr("has 4 mistakes:\n"));
  EXPECT_THAT(error,
              AllOf(HasSubstr("missing.bin\" "), HasSubstr("is empty"),
                    HasSubstr("has 16 tokens, but one window needs"), HasSubstr("has 101 bytes")));
  EXPECT_THAT(Error("data { train { path: '" + Path("bad.bin") + "' } }"),
              AllOf(HasSubstr("bad.bin"), HasSubstr("50"), HasSubstr("64")));
}

TEST_F(CommandValidateTest, WhatTheRulesNameIsNotNamedTwice) {
  EXPECT_THAT(Error("data { train { weight: 2 } }"), HasSubstr("has 1 mistake:\n"));
  EXPECT_THAT(Error("data { train { path: '" + Path("a.bin") + "' weight: -1 } }"),
              HasSubstr("has 1 mistake:\n"));
  EXPECT_THAT(Error("data { format: NUMPY }"), HasSubstr("has 1 mistake:\n"));
  EXPECT_THAT(Error("model { sequence: 0 }"), HasSubstr("has 1 mistake:\n"));
}

TEST_F(CommandValidateTest, RanksAreCheckedWhenTheyAreKnown) {
  EXPECT_TRUE(Validate({"parallel { tensor: 2 pipeline: 2 }"}, 8).ok());
  EXPECT_THAT(Error("parallel { tensor: 2 pipeline: 2 }", 6),
              HasSubstr("the number of ranks, 6, is not a multiple of parallel.tensor 2 x context "
                        "1 x pipeline 2 = 4"));
}

TEST_F(CommandValidateTest, AMissingJobAndABrokenOneSayWhere) {
  EXPECT_EQ(CommandValidate(Path("none.textproto"), {}, 0).code(), absl::StatusCode::kNotFound);
  WriteJob("trian { steps: 3 }");
  EXPECT_THAT(
      std::string(Validate().message()),
      HasSubstr("job.textproto:4:1: no field \"trian\" in the job; did you mean \"train\"?"));
}

}  // namespace
}  // namespace twinstream
