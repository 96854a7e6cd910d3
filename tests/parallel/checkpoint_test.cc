#include "parallel/checkpoint.h"

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/checkpoint_directory.h"
#include "parallel/checkpoint_reader.h"
#include "parallel/host_communicator.h"
#include "tests/testing/checkpoint_state.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/temporary_directory.h"

namespace twinstream {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LoadState;
using testing::SaveState;
using testing::TemporaryDirectory;

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

void FlipByte(const std::string& path, int64_t offset) {
  std::string text = *ReadFile(path);
  text[static_cast<size_t>(offset)] ^= 1;
  WriteText(path, text);
}

TEST(CheckpointTest, AnyNumberOfRanksLoadsWhatAnyNumberSaved) {
  for (int writers = 1; writers <= 4; ++writers) {
    const TemporaryDirectory directory;
    ASSERT_TRUE(SaveState(directory.path(), 7, writers, 1).ok());
    EXPECT_THAT(NamesIn(directory.path()),
                ::testing::UnorderedElementsAre("latest", "step_000000007"));
    EXPECT_EQ(*ReadFile(directory.Path("latest")), "step_000000007\n");
    for (int readers = 1; readers <= 4; ++readers) {
      EXPECT_EQ(LoadState(directory.Path("step_000000007"), readers, 1), absl::OkStatus());
    }
  }
}

TEST(CheckpointTest, ManifestHoldsTheRequest) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 3, 2, 1).ok());
  const absl::StatusOr<Manifest> manifest = ReadManifest(directory.Path("step_000000003"));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->step(), 3);
  EXPECT_EQ(manifest->next_sample(), 12);
  EXPECT_EQ(manifest->tokens(), 192);
  EXPECT_EQ(manifest->job().model().layers(), 2);
  EXPECT_EQ(manifest->layout(), "data 2");
  EXPECT_EQ(manifest->program(), "test");
  EXPECT_EQ(manifest->file_size(), 2);
  const StoredTensor* qkv = FindTensor(*manifest, "qkv.weight");
  ASSERT_NE(qkv, nullptr);
  EXPECT_EQ(qkv->box_size(), 6) << "three row ranges on each of two ranks";
  EXPECT_EQ(qkv->box(1).entry(), "qkv.weight#1");
}

TEST(CheckpointTest, ShardsAreOrdinarySafetensorsWithTheEntriesOfTheManifest) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 1, 2, 1).ok());
  const Manifest manifest = *ReadManifest(directory.Path("step_000000001"));
  for (const StoredTensor& tensor : manifest.tensor()) {
    for (const StoredBox& box : tensor.box()) {
      const auto file = SafetensorsSource::Open(
          absl::StrCat(directory.Path("step_000000001/"), manifest.file(box.file()).name()));
      ASSERT_TRUE(file.ok()) << file.status();
      const StoredArray* array = file->Find(box.entry());
      ASSERT_NE(array, nullptr) << box.entry();
      EXPECT_EQ(array->shape, BoxOf(box).extent);
    }
  }
}

TEST(CheckpointTest, TheSameStepSavedAgainIsReplacedAndLeftoversOfAKillAreRemoved) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(MakeDirectories(directory.Path(".tmp_step_000000005/rubbish")).ok());
  ASSERT_TRUE(MakeDirectories(directory.Path(".tmp_step_000000004")).ok());
  ASSERT_TRUE(SaveState(directory.path(), 5, 2, 1).ok());
  ASSERT_TRUE(SaveState(directory.path(), 5, 3, 2).ok());
  EXPECT_EQ(LoadState(directory.Path("step_000000005"), 2, 2), absl::OkStatus());
  EXPECT_THAT(NamesIn(directory.path()),
              ::testing::UnorderedElementsAre("latest", "step_000000005"));
}

TEST(CheckpointTest, AFlippedByteOfAnyBoxIsNamed) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 1, 2, 1).ok());
  const std::string step = directory.Path("step_000000001");
  const Manifest manifest = *ReadManifest(step);
  for (const StoredTensor& tensor : manifest.tensor()) {
    for (const StoredBox& box : tensor.box()) {
      const std::string path = absl::StrCat(step, "/", manifest.file(box.file()).name());
      const int64_t last = box.offset() + BoxOf(box).elements() * 4 - 1;
      FlipByte(path, last);
      const absl::Status status = LoadState(step, 3, 1);
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(path), HasSubstr(absl::StrCat("tensor ", tensor.name(), ",")),
                        HasSubstr(BoxOf(box).ToString()), HasSubstr("digest")));
      FlipByte(path, last);
    }
  }
  EXPECT_EQ(LoadState(step, 3, 1), absl::OkStatus());
}

TEST(CheckpointTest, ATruncatedOrMissingShardIsNamed) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 1, 2, 1).ok());
  const std::string step = directory.Path("step_000000001");
  const std::string shard = absl::StrCat(step, "/shard_00001.safetensors");
  fs::resize_file(shard, fs::file_size(shard) - 1);
  absl::Status status = LoadState(step, 1, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(shard), HasSubstr("tensor ")));
  EXPECT_EQ(CheckWhole(step).status().code(), absl::StatusCode::kDataLoss);
  fs::remove(shard);
  status = LoadState(step, 1, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(shard), HasSubstr("tensor ")));
  EXPECT_EQ(CheckWhole(step).status().code(), absl::StatusCode::kDataLoss);
}

TEST(CheckpointTest, AnyChangedByteAndAnyTruncationOfTheManifestIsFound) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 1, 1, 1).ok());
  const std::string step = directory.Path("step_000000001");
  const std::string path = absl::StrCat(step, "/manifest.textproto");
  const std::string text = *ReadFile(path);
  for (size_t i = 0; i + 1 < text.size(); i += 7) {
    std::string changed = text;
    changed[i] ^= 1;
    WriteText(path, changed);
    EXPECT_FALSE(ReadManifest(step).ok()) << "byte " << i;
    WriteText(path, text.substr(0, i));
    EXPECT_FALSE(ReadManifest(step).ok()) << "length " << i;
  }
  WriteText(path, text);
  EXPECT_TRUE(ReadManifest(step).ok());
}

TEST(CheckpointTest, TensorsOfAnotherModelAreNamed) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 1, 1, 1).ok());
  const std::string step = directory.Path("step_000000001");
  const std::unique_ptr<Device> device = *MakeDevice("cpu");
  const auto load = [&](auto change, auto known_elsewhere) {
    testing::CheckpointState state(0, 1, testing::Holding::kNeeded);
    change(state.pieces());
    const absl::Status status = LoadCheckpoint(step, state.pieces(), known_elsewhere, *device);
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  const auto nothing = [](absl::string_view) { return false; };
  EXPECT_EQ(load([](auto&) {}, nothing), "");
  EXPECT_THAT(load([](auto& pieces) { pieces[0].name = "other"; }, nothing),
              HasSubstr("tensor other of this model is not in the checkpoint"));
  EXPECT_THAT(load([](auto& pieces) { pieces[0].global[0] = 68; }, nothing),
              AllOf(HasSubstr("embedding.weight"), HasSubstr("[67, 4]"), HasSubstr("[68, 4]")));
  EXPECT_THAT(load([](auto& pieces) { pieces.pop_back(); }, nothing),
              HasSubstr("tensor scale of the checkpoint is not in this model"));
  EXPECT_EQ(load([](auto& pieces) { pieces.pop_back(); },
                 [](absl::string_view name) { return name == "scale"; }),
            "");
}

TEST(CheckpointTest, ADirectoryThatCannotBeMadeIsOneStatusOnAllRanks) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(ReplaceFile(directory.Path("file"), "not a directory").ok());
  const absl::Status status = SaveState(directory.Path("file/checkpoints"), 1, 4, 1);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("file/checkpoints"));
}

// As after ENOSPC: files of this process cannot grow beyond the limit.
TEST(CheckpointTest, AShardThatDoesNotFitIsOneStatusOnAllRanksAndChangesNothing) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 1, 3, 1).ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {1024, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status again = SaveState(directory.path(), 1, 3, 2);
  const absl::Status next = SaveState(directory.path(), 2, 3, 2);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(again.ok());
  EXPECT_THAT(std::string(next.message()), HasSubstr("shard_0000"));
  EXPECT_THAT(NamesIn(directory.path()),
              ::testing::UnorderedElementsAre("latest", "step_000000001"));
  EXPECT_EQ(LoadState(directory.Path("step_000000001"), 2, 1), absl::OkStatus());
}

TEST(CheckpointTest, OneRankWithoutTheDirectoryFailsAllRanksByName) {
  const TemporaryDirectory directory;
  const std::unique_ptr<Device> device = *MakeDevice("cpu");
  testing::RunRanks(3, [&](Transport& transport) {
    HostCommunicator world(transport, GridGroup::kWorld, {0, 1, 2});
    testing::CheckpointState state(transport.rank(), 3, testing::Holding::kOwned);
    const absl::Status status =
        SaveCheckpoint(directory.Path(transport.rank() == 1 ? "elsewhere" : "here"),
                       testing::RequestFor(1, 3), state.pieces(), *device, world);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 1: "), HasSubstr("elsewhere"), HasSubstr("all hosts share")));
  });
  EXPECT_TRUE(NamesIn(directory.Path("here")).empty());
}

TEST(CheckpointTest, OneDamagedShardFailsTheVerificationOfAllRanks) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(SaveState(directory.path(), 1, 3, 1).ok());
  const std::string step = directory.Path("step_000000001");
  const auto verify = [&] {
    std::vector<absl::Status> statuses(2);
    testing::RunRanks(2, [&](Transport& transport) {
      HostCommunicator world(transport, GridGroup::kWorld, {0, 1});
      statuses[static_cast<size_t>(transport.rank())] = VerifyCheckpoint(step, world);
    });
    return statuses;
  };
  for (const absl::Status& status : verify()) EXPECT_EQ(status, absl::OkStatus());
  for (const char* shard :
       {"/shard_00000.safetensors", "/shard_00001.safetensors", "/shard_00002.safetensors"}) {
    const std::string whole = ReadFile(step + shard).value();
    std::string damaged = whole;
    damaged.back() = static_cast<char>(damaged.back() ^ 1);
    ASSERT_TRUE(ReplaceFile(step + shard, damaged).ok());
    for (const absl::Status& status : verify()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(status.message()), HasSubstr(shard));
    }
    ASSERT_TRUE(ReplaceFile(step + shard, whole).ok());
  }
}

TEST(CheckpointTest, AnElementThatNobodyOwnsFailsAllRanks) {
  const TemporaryDirectory directory;
  const std::unique_ptr<Device> device = *MakeDevice("cpu");
  testing::RunRanks(2, [&](Transport& transport) {
    HostCommunicator world(transport, GridGroup::kWorld, {0, 1});
    testing::CheckpointState state(transport.rank(), 2, testing::Holding::kOwned);
    if (transport.rank() == 1) state.pieces().erase(state.pieces().begin());
    const absl::Status status =
        SaveCheckpoint(directory.path(), testing::RequestFor(1, 2), state.pieces(), *device, world);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("tensor embedding.weight [67, 4]: [34:67, 0:4] is stored nowhere"));
  });
  EXPECT_TRUE(NamesIn(directory.path()).empty());
}

}  // namespace
}  // namespace twinstream
