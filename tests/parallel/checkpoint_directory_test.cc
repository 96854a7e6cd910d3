#include "parallel/checkpoint_directory.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/crc32c.h"
#include "core/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/checkpoint_reader.h"
#include "tests/testing/checkpoint_state.h"
#include "tests/testing/temporary_directory.h"

namespace twinstream {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LoadState;
using testing::SaveState;
using testing::TemporaryDirectory;

TEST(CheckpointDirectoryTest, ACheckpointIsAStepDirectoryOrWhatLatestNames) {
  const TemporaryDirectory directory;
  const auto code = [&](const std::string& path) { return FindCheckpoint(path).status().code(); };
  EXPECT_EQ(code(directory.Path("absent")), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(directory.path()), absl::StatusCode::kNotFound);
  EXPECT_FALSE(HasCheckpoints(directory.path()).value());
  ASSERT_TRUE(SaveState(directory.path(), 1, 1, 1).ok());
  ASSERT_TRUE(SaveState(directory.path(), 2, 1, 2).ok());
  EXPECT_TRUE(HasCheckpoints(directory.path()).value());
  EXPECT_EQ(*FindCheckpoint(directory.path()), directory.Path("step_000000002"));
  EXPECT_EQ(*FindCheckpoint(directory.Path("step_000000001")), directory.Path("step_000000001"));
  for (const char* latest : {"", "step_000000009\n", "../x\n", "step_2\n"}) {
    ASSERT_TRUE(ReplaceFile(directory.Path("latest"), latest).ok());
    EXPECT_EQ(code(directory.path()), absl::StatusCode::kNotFound) << latest;
  }
}

TEST(CheckpointDirectoryTest, WithoutAnyCheckpointThereIsNoneAndNoWarning) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(MakeDirectories(directory.Path(".tmp_step_000000004")).ok());
  for (const std::string& path : {directory.path(), directory.Path("absent")}) {
    const NewestWhole found = FindNewestWhole(path, {}).value();
    EXPECT_EQ(found.step_directory, "");
    EXPECT_TRUE(found.warnings.empty());
  }
}

TEST(CheckpointDirectoryTest, DamagedOnesArePassedOverWithAWarningForTheNewestWholeOne) {
  const TemporaryDirectory directory;
  for (int64_t step : {1, 2, 3, 4, 5}) {
    ASSERT_TRUE(SaveState(directory.path(), step, 2, step).ok());
  }
  const std::string shard = "/shard_00001.safetensors";
  fs::resize_file(directory.Path("step_000000005" + shard), 100);
  fs::remove(directory.Path("step_000000004" + shard));
  fs::resize_file(directory.Path("step_000000003/manifest.textproto"), 0);
  const NewestWhole found = FindNewestWhole(directory.path(), {}).value();
  EXPECT_EQ(found.step_directory, directory.Path("step_000000002"));
  EXPECT_EQ(found.manifest.step(), 2);
  EXPECT_THAT(found.warnings, ElementsAre(HasSubstr("step_000000005"), HasSubstr("step_000000004"),
                                          HasSubstr("step_000000003")));
  EXPECT_EQ(LoadState(found.step_directory, 3, 2), absl::OkStatus());

  const std::vector<std::string> failed = {found.step_directory};
  EXPECT_EQ(FindNewestWhole(directory.path(), failed)->manifest.step(), 1);
}

// Nothing is damaged, so going on from an older one would lose what this one holds.
TEST(CheckpointDirectoryTest, OneOfAnotherVersionIsAnErrorNotPassedOver) {
  const std::string ours = "format_version: 1\n";
  for (const std::string& theirs :
       {std::string("format_version: 2\n"), ours + "newer_field: 3\n"}) {
    const TemporaryDirectory directory;
    for (int64_t step : {1, 2}) ASSERT_TRUE(SaveState(directory.path(), step, 1, step).ok());
    const std::string path = directory.Path("step_000000002/manifest.textproto");
    std::string text = ReadFile(path).value();
    text.resize(text.rfind("crc32c: "));
    ASSERT_EQ(absl::StrReplaceAll({{ours, theirs}}, &text), 1);
    absl::StrAppend(&text, "crc32c: ", Crc32c(text), "\n");
    ASSERT_TRUE(ReplaceFile(path, text).ok());
    const absl::Status status = FindNewestWhole(directory.path(), {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << theirs;
    EXPECT_THAT(std::string(status.message()), HasSubstr("step_000000002")) << theirs;
    const std::vector<std::string> except = {directory.Path("step_000000002")};
    EXPECT_EQ(FindNewestWhole(directory.path(), except)->manifest.step(), 1) << theirs;
  }
}

TEST(CheckpointDirectoryTest, WhatCannotBeListedIsNotEmpty) {
  const TemporaryDirectory directory;
  const std::string path = directory.Path("checkpoints");
  ASSERT_TRUE(ReplaceFile(path, "a file").ok());
  EXPECT_THAT(std::string(FindNewestWhole(path, {}).status().message()), HasSubstr(path));
  EXPECT_FALSE(HasCheckpoints(path).ok());
  EXPECT_FALSE(RemoveLeftovers(path).ok());
  EXPECT_FALSE(PruneCheckpoints(path, 1, 0).ok());
}

// Every file is there, but none can be opened.
TEST(CheckpointDirectoryTest, WhatCannotBeReadIsNotDamaged) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 1, 1, 1).ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int last = open("/dev/null", O_RDONLY);  // the lowest descriptor that is free
  const rlimit none_free = {static_cast<rlim_t>(last) + 1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_free), 0);
  const ShardFile shard = [] {
    ShardFile file;
    file.set_name("shard_00000.safetensors");
    return file;
  }();
  const absl::Status status = OpenShard(directory.Path("step_000000001"), shard).status();
  const absl::Status newest = FindNewestWhole(directory.path(), {}).status();
  setrlimit(RLIMIT_NOFILE, &before);
  close(last);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Too many open files"));
  EXPECT_FALSE(absl::IsDataLoss(status));
  EXPECT_FALSE(newest.ok());
}

TEST(CheckpointDirectoryTest, AFileNamedLikeAStepIsNoCheckpoint) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 1, 1, 1).ok());
  ASSERT_TRUE(ReplaceFile(directory.Path("step_000000002"), "").ok());
  EXPECT_EQ(FindNewestWhole(directory.path(), {})->manifest.step(), 1);
}

// A run that was resumed from an older step goes on from its own last one, or its own before that.
TEST(CheckpointDirectoryTest, StepsUpToLatestGoBeforeHigherOnes) {
  const TemporaryDirectory directory;
  for (int64_t step : {3, 8, 9, 5}) ASSERT_TRUE(SaveState(directory.path(), step, 1, step).ok());
  std::vector<std::string> failed;
  for (int64_t step : {5, 3, 9, 8}) {
    const NewestWhole found = FindNewestWhole(directory.path(), failed).value();
    EXPECT_EQ(found.manifest.step(), step);
    failed.push_back(found.step_directory);
  }
  ASSERT_TRUE(PruneCheckpoints(directory.path(), 1, 0).ok());
  EXPECT_TRUE(fs::exists(directory.Path("step_000000009")));
  EXPECT_TRUE(fs::exists(directory.Path("step_000000005")));
  fs::remove(directory.Path("latest"));
  EXPECT_EQ(FindNewestWhole(directory.path(), {})->manifest.step(), 9);
}

// The state is saved again and again by another process, which is killed at random moments.
TEST(CheckpointDirectoryTest, AKillAtAnyMomentLeavesTheLastWholeCheckpoint) {
  const TemporaryDirectory directory;
  std::mt19937 random(1);
  int64_t step = 0;
  for (int round = 0; round < 25; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int64_t next = step + 1;; ++next) {
        const bool fine = SaveState(directory.path(), next, 1, next % 100).ok() &&
                          PruneCheckpoints(directory.path(), 2, 0).ok();
        if (!fine) _exit(1);
      }
    }
    for (int wait = 0; step == 0 && wait < 10000 && !fs::exists(directory.Path("latest")); ++wait) {
      usleep(1000);  // for one to begin with
    }
    usleep(static_cast<useconds_t>(random() % 40000));
    kill(child, SIGKILL);
    int outcome = 0;
    ASSERT_EQ(waitpid(child, &outcome, 0), child);
    EXPECT_TRUE(WIFSIGNALED(outcome)) << "the child's save or pruning failed";
    const NewestWhole found = FindNewestWhole(directory.path(), {}).value();
    EXPECT_TRUE(found.warnings.empty()) << found.warnings[0];
    ASSERT_NE(found.step_directory, "");
    EXPECT_GE(found.manifest.step(), step);
    step = found.manifest.step();
    EXPECT_EQ(LoadState(found.step_directory, 2, step % 100), absl::OkStatus());
  }
}

TEST(CheckpointDirectoryTest, PruningKeepsWhatTheModelKeeps) {
  std::mt19937 random(1);
  const TemporaryDirectory source;
  ASSERT_TRUE(SaveState(source.path(), 1, 1, 1).ok());
  for (int round = 0; round < 20; ++round) {
    const TemporaryDirectory directory;
    const int64_t keep = static_cast<int64_t>(random() % 4);
    const int64_t keep_every = static_cast<int64_t>(random() % 4);
    std::set<int64_t> whole, damaged;
    int64_t step = 0;
    for (int save = 0; save < 10; ++save) {
      step += 1 + static_cast<int64_t>(random() % 3);
      const std::string path = directory.Path(StepName(step));
      fs::copy(source.Path(StepName(1)), path);
      const bool is_damaged = random() % 4 == 0;
      if (is_damaged) fs::remove(path + "/shard_00000.safetensors");
      (is_damaged ? damaged : whole).insert(step);
      std::ofstream(directory.Path("latest")) << StepName(step);
      ASSERT_TRUE(PruneCheckpoints(directory.path(), keep, keep_every).ok());

      // The model: of the whole ones, all but the newest `keep` go unless keep_every divides them.
      std::set<int64_t> kept;
      int64_t newer = 0;
      // NOLINTNEXTLINE(modernize-loop-convert): from the newest, and there are no reverse views
      for (auto it = whole.rbegin(); it != whole.rend(); ++it) {
        const bool divides = keep_every > 0 && *it % keep_every == 0;
        if (keep == 0 || newer++ < keep || divides) kept.insert(*it);
      }
      whole = kept;
      std::set<std::string> expected = {"latest"}, found;
      for (int64_t kept_step : kept) expected.insert(StepName(kept_step));
      for (int64_t kept_step : damaged) expected.insert(StepName(kept_step));
      for (const auto& entry : fs::directory_iterator(directory.path())) {
        found.insert(entry.path().filename().string());
      }
      EXPECT_EQ(found, expected) << "keep " << keep << " keep_every " << keep_every;
      if (!whole.empty()) {
        EXPECT_EQ(FindNewestWhole(directory.path(), {})->manifest.step(), 1)
            << "the newest whole one is gone";
      }
    }
  }
}

}  // namespace
}  // namespace twinstream
