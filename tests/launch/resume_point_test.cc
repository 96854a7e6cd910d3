#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/resume.h"
#include "tests/testing/checkpoint_state.h"
#include "tests/testing/temporary_directory.h"

namespace twinstream {
namespace {

using testing::SaveState;
using testing::TemporaryDirectory;

ResumePoint PointAt(std::string step_directory) {
  ResumePoint point;
  point.step_directory = std::move(step_directory);
  return point;
}

// Another run saves between the choice of a checkpoint and the lock of its directory.
TEST(ResumePointTest, APointIsChosenNoMoreOnceAnotherRunHasSaved) {
  const TemporaryDirectory directory;
  const std::string& path = directory.path();
  EXPECT_TRUE(CheckStillChosen("none", path, {}, ResumePoint()).ok());
  EXPECT_TRUE(CheckStillChosen("auto", path, {}, ResumePoint()).ok());

  ASSERT_TRUE(SaveState(path, 3, 1, 1).ok());
  const ResumePoint three = PointAt(directory.Path("step_000000003"));
  EXPECT_TRUE(CheckStillChosen("auto", path, {}, three).ok());
  EXPECT_EQ(CheckStillChosen("none", path, {}, ResumePoint()).code(),
            absl::StatusCode::kFailedPrecondition);

  ASSERT_TRUE(SaveState(path, 4, 1, 1).ok());
  const absl::Status status = CheckStillChosen("auto", path, {}, three);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("step_000000004"));
  EXPECT_TRUE(CheckStillChosen(three.step_directory, path, {}, three).ok());
  EXPECT_TRUE(CheckStillChosen("auto", path, {directory.Path("step_000000004")}, three).ok());
}

}  // namespace
}  // namespace twinstream
