#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/token_dataset.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/command_prepare_data.h"

namespace {
// Paths that the two functions below refuse.
std::string unreadable, without_room;

bool Leads(int descriptor, const std::string& path) {
  std::error_code error;
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  return !path.empty() && std::filesystem::read_symlink(link, error) == path;
}
}  // namespace

// In the C library's place: a disk that finds no room only when it has to write.
extern "C" int fsync(int descriptor) {
  if (!Leads(descriptor, without_room)) return static_cast<int>(syscall(SYS_fsync, descriptor));
  errno = ENOSPC;
  return -1;
}

extern "C" ssize_t read(int descriptor, void* buffer, size_t size) {
  if (!Leads(descriptor, unreadable)) return syscall(SYS_read, descriptor, buffer, size);
  errno = EIO;
  return -1;
}

namespace twinstream {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class PrepareDataTest : public ::testing::Test {
 protected:
  PrepareDataTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~PrepareDataTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
    return Path(name);
  }
  std::string Read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(Path(name), std::ios::binary).rdbuf();
    return text.str();
  }
  std::vector<std::string> FilesIn(const std::string& name) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(Path(name))) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("prepare_data_test." + std::to_string(getpid()));
};

// Two bytes a character, low byte first.
std::string AsTokens(const std::string& text) {
  std::string tokens;
  for (const char c : text) tokens += {c, '\0'};
  return tokens;
}

std::string EveryByte() {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  return text;
}

TEST_F(PrepareDataTest, BytesBecomeTokensAndInputsFollowEachOther) {
  const std::string a = Write("a.txt", EveryByte()), b = Write("b.txt", "second\r\n");
  ::testing::internal::CaptureStdout();
  ASSERT_TRUE(CommandPrepareData({a, b, a}, Path("new/folder/out"), "bytes", 0).ok());
  std::fflush(stdout);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            Path("new/folder/out.bin") + ": 520 tokens (u16, vocabulary 256)\n");
  EXPECT_EQ(Read("new/folder/out.bin"), AsTokens(EveryByte() + "second\r\n" + EveryByte()));
  EXPECT_EQ(Read("new/folder/out.json"),
            "{\"tokens\": 520, \"vocabulary\": 256, \"tokenizer\": \"bytes\"}\n");
  EXPECT_THAT(FilesIn("new/folder"), UnorderedElementsAre("out.bin", "out.json"));
}

TEST_F(PrepareDataTest, TheLastFractionIsHeldOut) {
  // Longer than a chunk; the cut at 90% falls inside one.
  std::string text;
  for (int i = 0; i < 300000; ++i) text += std::to_string(i);
  const std::string input = Write("a.txt", text);
  ASSERT_TRUE(CommandPrepareData({input}, Path("out"), "bytes", 0.1).ok());
  const size_t held_out = (text.size() + 5) / 10;
  EXPECT_EQ(Read("out.bin"), AsTokens(text.substr(0, text.size() - held_out)));
  EXPECT_EQ(Read("out.validation.bin"), AsTokens(text.substr(text.size() - held_out)));
  EXPECT_THAT(FilesIn(""),
              UnorderedElementsAre("a.txt", "out.bin", "out.json", "out.validation.bin"));
  EXPECT_TRUE(
      TokenDataset::Open(
          {.name = "data.train", .files = {{Path("out.bin")}}, .sequence = 64, .vocabulary = 256})
          ->CheckTokens(0, 1)
          .ok());
}

TEST_F(PrepareDataTest, RefusesByNameAndWritesNothing) {
  const std::string good = Write("good.txt", "some text"), empty = Write("empty.txt", "");
  std::filesystem::create_directory(Path("folder"));
  const auto expect = [&](const std::vector<std::string>& inputs, const std::string& tokenizer,
                          double fraction, absl::StatusCode code, const std::string& message) {
    const absl::Status status = CommandPrepareData(inputs, Path("sub/out"), tokenizer, fraction);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  const absl::StatusCode invalid = absl::StatusCode::kInvalidArgument;
  expect({good, Path("gone")}, "bytes", 0, absl::StatusCode::kNotFound, Path("gone"));
  expect({good, empty}, "bytes", 0, invalid, empty + " is empty");
  expect({Path("folder")}, "bytes", 0, invalid, Path("folder") + " is not a regular file");
  expect({}, "bytes", 0, invalid, "--input names no file");
  expect({good}, "gpt2", 0, invalid, "--tokenizer=gpt2 is not built yet");
  expect({good}, "", 0, invalid, "--tokenizer= is not");
  for (const double fraction : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
    expect({good}, "bytes", fraction, invalid, "--validation=");
  }
  expect({good}, "bytes", 0.01, invalid, "--validation=0.01 of 9 tokens leaves one");
  expect({good}, "bytes", 0.99, invalid, "--validation=0.99 of 9 tokens leaves one");
  EXPECT_FALSE(std::filesystem::exists(Path("sub")));
}

TEST_F(PrepareDataTest, AValidationFileOfAnEarlierRunIsNotLeftBesideNewOnes) {
  const std::string a = Write("a.txt", "some text"), b = Write("b.txt", "other text");
  ASSERT_TRUE(CommandPrepareData({a}, Path("out"), "bytes", 0.5).ok());
  const absl::Status status = CommandPrepareData({b}, Path("out"), "bytes", 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(Path("out.validation.bin")), HasSubstr("--validation")));
  EXPECT_EQ(Read("out.bin"), AsTokens("some"));
  EXPECT_TRUE(CommandPrepareData({b}, Path("out"), "bytes", 0.5).ok());
  std::filesystem::remove(Path("out.validation.bin"));
  EXPECT_TRUE(CommandPrepareData({b}, Path("out"), "bytes", 0).ok());
}

TEST_F(PrepareDataTest, AnInputIsNotOverwritten) {
  const std::string other = Write("other", "text"), prefix = Path("kept");
  for (const char* name : {"kept.bin", "kept.validation.bin", "kept.json", "kept.bin.tmp",
                           "kept.validation.bin.tmp", "kept.json.tmp"}) {
    const std::string input = Write(name, "the only copy");
    std::filesystem::create_symlink(input, Path("link"));
    for (const std::string& named : {input, Path("link")}) {
      const absl::Status status = CommandPrepareData({other, named}, prefix, "bytes", 0.5);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(named + " would be overwritten by --output=" + prefix));
      EXPECT_EQ(Read(name), "the only copy");
    }
    std::filesystem::remove(Path("link"));
    std::filesystem::remove(input);
  }
}

TEST_F(PrepareDataTest, NothingIsWrittenWhereADirectoryIsInTheWayOfOneOutput) {
  const std::string good = Write("good.txt", "some text");
  for (const std::string name : {"out.bin", "out.validation.bin", "out.json"}) {
    for (const auto& [taken, message] : {std::pair(name, " is a directory"),
                                         std::pair(name + ".tmp", ": a directory of that name")}) {
      std::filesystem::create_directory(Path(taken));
      const absl::Status status = CommandPrepareData({good}, Path("out"), "bytes", 0.5);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(status.message()), StartsWith("--output: " + Path(taken) + message));
      EXPECT_THAT(FilesIn(""), UnorderedElementsAre("good.txt", taken));
      std::filesystem::remove(Path(taken));
    }
  }
}

TEST_F(PrepareDataTest, ANameThatIsTooLongForOneOutputAloneLeavesNone) {
  const std::string good = Write("good.txt", "some text");
  const std::string prefix(255 - std::string(".json.tmp").size() + 1, 'a');  // fits with .bin.tmp
  const absl::Status status = CommandPrepareData({good}, Path(prefix), "bytes", 0);
  EXPECT_THAT(std::string(status.message()),
              StartsWith("--output: cannot create " + Path(prefix) + ".json.tmp"));
  EXPECT_THAT(FilesIn(""), UnorderedElementsAre("good.txt"));
}

TEST_F(PrepareDataTest, WhatATemporaryNameLinksToStaysAsItWas) {
  const std::string good = Write("good.txt", "some text"), other = Write("other", "not ours");
  std::filesystem::create_symlink(other, Path("out.bin.tmp"));
  std::filesystem::create_hard_link(other, Path("out.json.tmp"));
  ASSERT_EQ(mkfifo(Path("out.validation.bin.tmp").c_str(), 0600), 0);
  ASSERT_TRUE(CommandPrepareData({good}, Path("out"), "bytes", 0.5).ok());
  EXPECT_EQ(Read("other"), "not ours");
  EXPECT_EQ(Read("out.bin"), AsTokens("some"));
  EXPECT_FALSE(std::filesystem::is_symlink(Path("out.bin")));
  EXPECT_EQ(std::filesystem::hard_link_count(other), 1u);
}

TEST_F(PrepareDataTest, AFailureKeepsTheOldFilesAndLeavesNoTemporaryOnes) {
  const std::string good = Write("good.txt", "some text");
  Write("out.bin", "old");
  std::filesystem::create_directory(Path("out.validation.bin.tmp"));  // cannot be written
  EXPECT_FALSE(CommandPrepareData({good}, Path("out"), "bytes", 0.5).ok());
  EXPECT_EQ(Read("out.bin"), "old");
  EXPECT_THAT(FilesIn(""), UnorderedElementsAre("good.txt", "out.bin", "out.validation.bin.tmp"));
}

TEST_F(PrepareDataTest, ADiskThatFindsNoRoomAtTheEndKeepsAllOldFiles) {
  const std::string good = Write("good.txt", "some text");
  const std::vector<std::string> names = {"out.bin", "out.validation.bin", "out.json"};
  for (const std::string& name : names) Write(name, "old " + name);
  for (const std::string& full : names) {
    without_room = Path(full + ".tmp");
    const absl::Status status = CommandPrepareData({good}, Path("out"), "bytes", 0.5);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(without_room), HasSubstr("No space left")));
    for (const std::string& name : names) EXPECT_EQ(Read(name), "old " + name) << full;
    EXPECT_THAT(FilesIn(""), UnorderedElementsAre("good.txt", names[0], names[1], names[2]));
  }
  without_room.clear();
}

TEST_F(PrepareDataTest, AnInputThatCannotBeReadIsNamed) {
  const std::string good = Write("good.txt", "some text");
  unreadable = good;
  const absl::Status status = CommandPrepareData({good}, Path("out"), "bytes", 0);
  unreadable.clear();
  EXPECT_EQ(status.message(), "--input: cannot read " + good + ": Input/output error");
  EXPECT_THAT(FilesIn(""), UnorderedElementsAre("good.txt"));
}

}  // namespace
}  // namespace twinstream
