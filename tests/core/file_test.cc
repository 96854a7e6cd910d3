#include "core/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>

#include "tests/testing/temporary_directory.h"

namespace {
bool read_only = false;
}  // namespace

// In the C library's place: refuses like a read-only file system, which does not look for the file.
extern "C" int unlink(const char* path) noexcept {
  if (!read_only) return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
  errno = EROFS;
  return -1;
}

namespace twinstream {
namespace {

using testing::TemporaryDirectory;

TEST(FileTest, ADirectoryIsWritableWhereItCanBeMadeAndNothingIsMade) {
  const TemporaryDirectory directory;
  EXPECT_TRUE(CheckWritableDirectory(directory.path()).ok());
  EXPECT_TRUE(CheckWritableDirectory(directory.Path("a/b/c")).ok());
  EXPECT_FALSE(std::filesystem::exists(directory.Path("a")));
  EXPECT_TRUE(CheckWritableDirectory("relative/path").ok());
}

TEST(FileTest, BelowAFileOrADanglingLinkNothingIsWritable) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(ReplaceFile(directory.Path("file"), "text").ok());
  EXPECT_FALSE(CheckWritableDirectory(directory.Path("file")).ok());
  EXPECT_FALSE(CheckWritableDirectory(directory.Path("file/a/b")).ok());
  std::filesystem::create_symlink("nowhere", directory.Path("link"));
  EXPECT_FALSE(CheckWritableDirectory(directory.Path("link/a")).ok());
}

TEST(FileTest, ANameThatIsTooLongIsNotWritableEvenBelowWhatIsMissing) {
  const TemporaryDirectory directory;
  const std::string longest(255, 'a');
  EXPECT_TRUE(CheckWritableDirectory(directory.Path("new/" + longest + "/b")).ok());
  EXPECT_FALSE(CheckWritableDirectory(directory.Path("new/" + longest + "a/b")).ok());
  std::string deep = "new";
  while (deep.size() < 4096) deep += "/" + longest;
  EXPECT_FALSE(CheckWritableDirectory(directory.Path(deep)).ok());
}

TEST(FileTest, AFileThatCannotBeReplacedLeavesNothingBehind) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(MakeDirectories(directory.Path("taken/folder")).ok());
  EXPECT_FALSE(ReplaceFile(directory.Path("taken"), "text").ok());
  EXPECT_FALSE(std::filesystem::exists(directory.Path("taken.tmp")));
}

TEST(FileTest, ATemporaryFileIsMadeAfreshWhateverHadItsName) {
  const TemporaryDirectory directory;
  const std::string path = directory.Path("file"), old = path + ".tmp";
  const std::string other = directory.Path("other");
  ASSERT_TRUE(ReplaceFile(other, "not ours").ok());
  const auto expect_replaced = [&](const char* what) {
    EXPECT_EQ(ReplaceFile(path, what), absl::OkStatus());
    EXPECT_EQ(*ReadFile(path), what);
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(path))) << what;
    EXPECT_EQ(std::filesystem::hard_link_count(path), 1u) << what;
    EXPECT_EQ(*ReadFile(other), "not ours") << what;
    EXPECT_FALSE(std::filesystem::exists(std::filesystem::symlink_status(old))) << what;
  };
  std::filesystem::create_symlink(other, old);
  expect_replaced("symbolic link");
  std::filesystem::create_symlink(directory.Path("nowhere"), old);
  expect_replaced("dangling link");
  EXPECT_FALSE(std::filesystem::exists(directory.Path("nowhere")));
  std::filesystem::create_hard_link(other, old);
  expect_replaced("hard link");
  ASSERT_EQ(mkfifo(old.c_str(), 0600), 0);
  expect_replaced("pipe");
}

TEST(FileTest, ADirectoryInThePlaceOfATemporaryFileIsNamedAndKept) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(MakeDirectories(directory.Path("file.tmp/kept")).ok());
  const absl::Status status = ReplaceFile(directory.Path("file"), "text");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr(directory.Path("file.tmp") + ": a directory of that name"));
  EXPECT_TRUE(std::filesystem::exists(directory.Path("file.tmp/kept")));
}

TEST(FileTest, AFileThatCannotBeCreatedIsNotCalledAnOldOne) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(ReplaceFile(directory.Path("file"), "text").ok());
  for (const std::string& path : {directory.Path("file/below"), directory.Path("missing/below"),
                                  directory.Path(std::string(256, 'a'))}) {
    const absl::StatusOr<OutputFile> file = OutputFile::Create(path);
    EXPECT_THAT(std::string(file.status().message()),
                ::testing::StartsWith("cannot create " + path));
  }
}

TEST(FileTest, OneFileOrLinkIsRemovedAndNothingElse) {
  const TemporaryDirectory directory;
  const std::string kept = directory.Path("kept"), path = directory.Path("path");
  ASSERT_TRUE(MakeDirectories(kept + "/folder").ok());
  ASSERT_TRUE(ReplaceFile(path, "text").ok());
  EXPECT_EQ(RemoveFile(path), absl::OkStatus());
  EXPECT_FALSE(std::filesystem::exists(path));
  std::filesystem::create_symlink(kept, path);
  EXPECT_EQ(RemoveFile(path), absl::OkStatus());
  EXPECT_FALSE(std::filesystem::is_symlink(path));
  const absl::Status status = RemoveFile(kept);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              ::testing::StartsWith(kept + ": a directory of that name"));
  EXPECT_TRUE(std::filesystem::exists(kept + "/folder"));
}

TEST(FileTest, ThereIsNothingToRemoveWhereThereCanBeNoFile) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(ReplaceFile(directory.Path("file"), "text").ok());
  for (const std::string& path :
       {directory.Path("missing"), directory.Path("missing/below"), directory.Path("file/below"),
        directory.Path(std::string(256, 'a'))}) {
    EXPECT_EQ(RemoveFile(path), absl::OkStatus());
  }
  EXPECT_EQ(*ReadFile(directory.Path("file")), "text");
}

TEST(FileTest, OnAReadOnlyFileSystemOnlyAFileThatIsThereCannotBeRemoved) {
  const TemporaryDirectory directory;
  const std::string path = directory.Path("file");
  ASSERT_TRUE(ReplaceFile(path, "text").ok());
  read_only = true;
  const absl::Status missing = RemoveFile(directory.Path("missing")), there = RemoveFile(path);
  read_only = false;
  EXPECT_EQ(missing, absl::OkStatus());
  EXPECT_EQ(there.message(), "cannot remove " + path + ": Read-only file system");
}

TEST(FileTest, AFileThatWasRemovedTakesNoMoreBytes) {
  const TemporaryDirectory directory;
  absl::StatusOr<OutputFile> file = OutputFile::Append(directory.Path("lines"));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->Write("a\n").ok());
  ASSERT_TRUE(RemoveFile(directory.Path("lines")).ok());
  const absl::Status status = file->Write("b\n");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("lines was removed"));
}

TEST(FileTest, ALockHasOneHolderUntilItEnds) {
  using std::chrono::seconds;
  const TemporaryDirectory directory;
  const std::string path = directory.Path("lock");
  {
    absl::StatusOr<FileLock> first = FileLock::Take(path, seconds(0));
    ASSERT_TRUE(first.ok());
    const FileLock moved = *std::move(first);
    const absl::Status second = FileLock::Take(path, seconds(0)).status();
    EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(second.message()), ::testing::HasSubstr(path));
  }
  EXPECT_TRUE(FileLock::Take(path, seconds(0)).ok());
}

TEST(FileTest, AFileIsReplaceableUnlessADirectoryHasItsNameOrThatOfItsTemporaryFile) {
  const TemporaryDirectory directory;
  const std::string path = directory.Path("latest");
  EXPECT_TRUE(CheckReplaceable(path).ok());
  ASSERT_TRUE(ReplaceFile(path, "text").ok());
  EXPECT_TRUE(CheckReplaceable(path).ok());
  ASSERT_TRUE(MakeDirectories(path + ".tmp").ok());
  EXPECT_EQ(CheckReplaceable(path).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(RemoveTree(path + ".tmp").ok());
  ASSERT_TRUE(RemoveFile(path).ok());
  ASSERT_TRUE(MakeDirectories(path).ok());
  EXPECT_EQ(CheckReplaceable(path).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(FileTest, LinksInACircleAreAMistakeOfTheName) {
  const TemporaryDirectory directory;
  std::filesystem::create_symlink(directory.Path("b"), directory.Path("a"));
  std::filesystem::create_symlink(directory.Path("a"), directory.Path("b"));
  EXPECT_EQ(ReadFile(directory.Path("a")).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FileTest, APipeIsRefusedWithoutWaitingForItsWriter) {
  const TemporaryDirectory directory;
  ASSERT_EQ(mkfifo(directory.Path("pipe").c_str(), 0600), 0);
  const absl::StatusOr<std::string> text = ReadFile(directory.Path("pipe"));
  EXPECT_EQ(text.status().message(), directory.Path("pipe") + " is not a regular file");
}

}  // namespace
}  // namespace twinstream
