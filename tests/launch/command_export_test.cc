#include "launch/command_export.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "core/safetensors.h"
#include "gtest/gtest.h"
#include "parallel/initial_weights.h"
#include "tests/testing/checkpoint_state.h"
#include "tests/testing/temporary_directory.h"

namespace twinstream {
namespace {

namespace fs = std::filesystem;
using testing::CheckpointState;
using testing::Holding;
using testing::TemporaryDirectory;

bool IsMoment(const std::string& name) { return absl::StartsWith(name, "adam_"); }

// Name and global shape of every tensor of the test state's model.
std::vector<TensorSpec> Model() {
  CheckpointState whole(0, 1, Holding::kNeeded);
  std::vector<TensorSpec> model;
  for (const Piece& piece : whole.pieces()) {
    const bool known = !model.empty() && model.back().name == piece.name;
    if (!known && !IsMoment(piece.name)) model.push_back({piece.name, DType::kF32, piece.global});
  }
  return model;
}

// Loads the export as initial weights of `ranks` ranks; true if every weight is of `version`.
absl::Status LoadExport(const std::string& path, int ranks, int64_t version) {
  const std::unique_ptr<Device> device = *MakeDevice("cpu");
  for (int rank = 0; rank < ranks; ++rank) {
    CheckpointState state(rank, ranks, Holding::kNeeded);
    std::vector<Piece>& pieces = state.pieces();
    std::erase_if(pieces, [](const Piece& piece) { return IsMoment(piece.name); });
    const absl::Status status = LoadInitialWeights(path, Model(), pieces, *device);
    if (!status.ok()) return status;
    if (!state.Holds(version)) return absl::DataLossError("other values than those saved");
  }
  return absl::OkStatus();
}

TEST(CommandExportTest, OneFileHoldsExactlyTheModelAndInitialWeightsLoadItOnAnyLayout) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(testing::SaveState(directory.Path("run"), 3, 3, 5).ok());
  ASSERT_TRUE(CommandExport(directory.Path("run"), directory.Path("out"), "safetensors").ok());
  const auto file = SafetensorsFile::Open(directory.Path("out/model.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->arrays().size(), Model().size());
  EXPECT_EQ(file->metadata().at("format"), "pt");
  for (const TensorSpec& tensor : Model()) {
    const auto found = std::find_if(file->arrays().begin(), file->arrays().end(),
                                    [&](const auto& array) { return array.name == tensor.name; });
    ASSERT_NE(found, file->arrays().end()) << tensor.name;
    EXPECT_EQ(found->shape, tensor.shape);
    EXPECT_EQ(found->dtype, "F32");
  }
  for (int ranks = 1; ranks <= 4; ++ranks) {
    EXPECT_EQ(LoadExport(directory.Path("out"), ranks, 5), absl::OkStatus());
  }
}

TEST(CommandExportTest, SplitFilesHaveAnIndexAndEachExportReplacesTheOneBefore) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(testing::SaveState(directory.Path("run"), 1, 2, 1).ok());
  ASSERT_TRUE(testing::SaveState(directory.Path("run"), 2, 2, 2).ok());
  const std::string out = directory.Path("out");
  const std::string first = directory.Path("run/step_000000001");
  const std::string second = directory.Path("run/step_000000002");
  ASSERT_TRUE(ExportWeights(first, out, 1 << 20).ok());
  EXPECT_EQ(LoadExport(out, 2, 1), absl::OkStatus());
  ASSERT_TRUE(ExportWeights(second, out, 300).ok());  // embedding alone takes more
  EXPECT_TRUE(fs::exists(directory.Path("out/model.safetensors.index.json")));
  EXPECT_FALSE(fs::exists(directory.Path("out/model.safetensors")));
  EXPECT_EQ(LoadExport(out, 2, 2), absl::OkStatus());
  ASSERT_TRUE(ExportWeights(first, out, 1 << 20).ok());
  EXPECT_FALSE(fs::exists(directory.Path("out/model.safetensors.index.json")));
  EXPECT_EQ(LoadExport(out, 2, 1), absl::OkStatus());
}

TEST(CommandExportTest, ADamagedCheckpointLeavesNoFile) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(testing::SaveState(directory.Path("run"), 1, 2, 1).ok());
  const std::string shard = directory.Path("run/step_000000001/shard_00001.safetensors");
  fs::resize_file(shard, fs::file_size(shard) - 1);
  const absl::Status status =
      CommandExport(directory.Path("run"), directory.Path("out"), "safetensors");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(fs::is_empty(directory.Path("out")));
}

TEST(CommandExportTest, ADirectoryInTheWayIsNamedAndKept) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(testing::SaveState(directory.Path("run"), 1, 2, 1).ok());
  const auto expect_kept = [&](const char* name, int64_t file_bytes) {
    const std::string taken = directory.Path(name);
    fs::create_directories(taken + "/kept");
    const absl::Status status =
        ExportWeights(directory.Path("run/step_000000001"), directory.Path("out"), file_bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(absl::StrContains(status.message(), taken + ": a directory")) << status;
    EXPECT_TRUE(fs::exists(taken + "/kept"));
    fs::remove_all(directory.Path("out"));
  };
  expect_kept("out/model.safetensors.tmp", 1 << 20);
  expect_kept("out/model.safetensors.index.json", 1 << 20);  // of no earlier export
  expect_kept("out/model.safetensors.index.json.tmp", 300);
  expect_kept("out/model.safetensors", 300);
}

TEST(CommandExportTest, WrongCallsAreRefusedByName) {
  const TemporaryDirectory directory;
  const auto code = [&](const char* output, const char* format) {
    return CommandExport(directory.path(), output, format).code();
  };
  EXPECT_EQ(code("out", "olmo"), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code("out", "pickle"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("", "safetensors"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("out", "safetensors"), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace twinstream
