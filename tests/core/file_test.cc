#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/testing/temporary_directory.h"

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

TEST(FileTest, APipeIsRefusedWithoutWaitingForItsWriter) {
  const TemporaryDirectory directory;
  ASSERT_EQ(mkfifo(directory.Path("pipe").c_str(), 0600), 0);
  const absl::StatusOr<std::string> text = ReadFile(directory.Path("pipe"));
  EXPECT_EQ(text.status().message(), directory.Path("pipe") + " is not a regular file");
}

}  // namespace
}  // namespace twinstream
