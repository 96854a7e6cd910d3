#include "launch/command_inspect.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_split.h"
#include "core/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/checkpoint_reader.h"
#include "tests/testing/checkpoint_state.h"
#include "tests/testing/temporary_directory.h"

namespace twinstream {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::SaveState;
using ::testing::StartsWith;
using testing::TemporaryDirectory;
using ::testing::UnorderedElementsAre;

struct Outcome {
  absl::Status status;
  std::string printed;
};

Outcome Inspect(const std::vector<std::string>& paths) {
  ::testing::internal::CaptureStdout();
  const absl::Status status = CommandInspect(paths);
  return {status, ::testing::internal::GetCapturedStdout()};
}

TEST(CommandInspectTest, ContentsLayoutAndWholenessArePrinted) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 7, 2, 1).ok());
  const Outcome outcome = Inspect({directory.path()});
  EXPECT_EQ(outcome.status, absl::OkStatus());
  // 67 x 4 + 8 x 6 + 12 x 3 + 2 + 5 + 1 elements without the moment.
  for (const char* text :
       {"step_000000007\n", "step        7\n", "layout      data 2\n", "layers 2,",
        "parameters  360\n", "in 2 files\n", "embedding.weight         F32 [67, 4]  [0:34, 0:4] ",
        "[34:67, 0:4]\n", "whole       yes"}) {
    EXPECT_THAT(outcome.printed, HasSubstr(text));
  }
}

TEST(CommandInspectTest, DamageIsNamedAndFails) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 7, 2, 1).ok());
  const std::string step = directory.Path("step_000000007");
  const Manifest manifest = *ReadManifest(step);
  const StoredTensor& tensor = *FindTensor(manifest, "up.weight");
  const std::string path = step + "/" + manifest.file(tensor.box(1).file()).name();
  std::string shard = *ReadFile(path);
  shard[static_cast<size_t>(tensor.box(1).offset())] ^= 1;
  std::ofstream(path, std::ios::binary) << shard;
  const Outcome outcome = Inspect({step});
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(outcome.status.message()),
              AllOf(HasSubstr("shard_00001.safetensors"), HasSubstr("tensor up.weight"),
                    Not(HasSubstr("embedding"))));
  EXPECT_THAT(outcome.printed, AllOf(HasSubstr("DAMAGED"), HasSubstr("whole       NO")));
}

// The shard's own header, which only other readers need.
TEST(CommandInspectTest, AnAlteredHeaderOfAShardIsNamedAndFails) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 7, 2, 1).ok());
  const std::string step = directory.Path("step_000000007");
  const std::string path = step + "/" + ReadManifest(step)->file(0).name();
  const std::string whole = *ReadFile(path);
  const size_t name = whole.find("embedding.weight");
  ASSERT_NE(name, std::string::npos);
  for (const size_t place : {size_t{0}, size_t{8}, name}) {
    std::string shard = whole;
    shard[place] ^= 1;
    std::ofstream(path, std::ios::binary) << shard;
    const Outcome outcome = Inspect({step});
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kDataLoss) << place;
    EXPECT_THAT(std::string(outcome.status.message()), HasSubstr(path)) << place;
  }
}

TEST(CommandInspectTest, AStepWithoutItsManifestIsNotWhole) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 7, 2, 1).ok());
  std::filesystem::remove(directory.Path("step_000000007/manifest.textproto"));
  for (const std::string& path :
       {directory.path(), directory.Path("step_000000007"), directory.Path("step_000000007/")}) {
    const absl::Status status = Inspect({path}).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr("manifest.textproto")) << path;
  }
}

TEST(CommandInspectTest, AFileThatIsLostIsNamedOnceAndDigestsOfOthersStillCount) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 7, 3, 1).ok());
  const std::string step = directory.Path("step_000000007");
  const Manifest manifest = *ReadManifest(step);
  const auto path = [&](int file) { return step + "/" + manifest.file(file).name(); };
  const StoredTensor& tensor = *FindTensor(manifest, "up.weight");
  ASSERT_EQ(tensor.box_size(), 3);
  std::filesystem::remove(path(tensor.box(0).file()));
  std::filesystem::resize_file(path(tensor.box(1).file()), 9);
  std::string shard = *ReadFile(path(tensor.box(2).file()));
  shard[static_cast<size_t>(tensor.box(2).offset())] ^= 1;
  std::ofstream(path(tensor.box(2).file()), std::ios::binary) << shard;
  const Outcome outcome = Inspect({step});
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kDataLoss);
  const std::vector<std::string> lines = absl::StrSplit(outcome.status.message(), '\n');
  EXPECT_THAT(lines, UnorderedElementsAre(
                         step + " is not whole:",
                         AllOf(StartsWith("cannot open " + path(tensor.box(0).file())),
                               HasSubstr("No such file"), HasSubstr("; tensors in it: ")),
                         AllOf(StartsWith(path(tensor.box(1).file()) + " has 9 bytes instead of"),
                               HasSubstr("; tensors in it: ")),
                         HasSubstr(": tensor up.weight, box ")));
  EXPECT_THAT(outcome.printed, AllOf(HasSubstr(":67, 0:4]  DAMAGED"), HasSubstr("whole       NO")));
}

TEST(CommandInspectTest, TwoLayoutsOfTheSameStateAreIdentical) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.Path("a"), 7, 1, 1).ok());
  ASSERT_TRUE(SaveState(directory.Path("b"), 7, 3, 1).ok());
  const Outcome outcome = Inspect({directory.Path("a"), directory.Path("b")});
  EXPECT_EQ(outcome.status, absl::OkStatus());
  EXPECT_THAT(outcome.printed, AllOf(HasSubstr("the jobs are the same"),
                                     HasSubstr("7 of 7 tensors identical; largest difference 0")));
}

TEST(CommandInspectTest, DifferencesOfValuesAndJobsAreNamed) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.Path("a"), 7, 1, 1).ok());
  ASSERT_TRUE(SaveState(directory.Path("b"), 8, 2, 2).ok());
  const std::string path = directory.Path("b/step_000000008");
  Manifest manifest = *ReadManifest(path);
  manifest.mutable_job()->mutable_optimizer()->set_peak_lr(0.25);
  ASSERT_TRUE(ReplaceFile(path + "/manifest.textproto", ManifestText(manifest)).ok());
  const Outcome outcome = Inspect({directory.Path("a"), directory.Path("b")});
  EXPECT_EQ(outcome.status, absl::OkStatus());
  EXPECT_THAT(outcome.printed,
              AllOf(HasSubstr("optimizer"), HasSubstr("0.25"),
                    HasSubstr("differs by at most 10000"), HasSubstr("0 of 7 tensors identical")));
}

TEST(CommandInspectTest, WithoutACheckpointNothingIsThere) {
  const TemporaryDirectory directory;
  EXPECT_EQ(Inspect({directory.path()}).status.code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace twinstream
