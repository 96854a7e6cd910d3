#include "parallel/initial_weights.h"

#include <vector>

#include "core/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temporary_directory.h"

namespace twinstream {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryDirectory;

// Writes one tensor "w" of this dtype, shape [2, 2].
void WriteTensor(const std::string& path, DType dtype, const void* values) {
  const TensorSpec spec = {"w", dtype, {2, 2}};
  auto writer = SafetensorsWriter::Create(path, {spec}, {});
  ASSERT_TRUE(writer.ok());
  const size_t bytes = static_cast<size_t>(spec.bytes());
  ASSERT_TRUE(writer->Append({static_cast<const std::byte*>(values), bytes}).ok());
  ASSERT_TRUE(writer->Finish().ok());
}

TEST(InitialWeightsTest, MissingExtraAndMisshapenTensorsAreAllNamed) {
  const TemporaryDirectory directory;
  const std::string path = directory.Path("w.safetensors");
  const std::unique_ptr<Device> device = *MakeDevice("cpu");
  const float values[4] = {};
  WriteTensor(path, DType::kF32, values);
  const auto message = [&](const std::vector<TensorSpec>& model) {
    const absl::Status status = LoadInitialWeights(path, model, {}, *device);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const std::string misshapen = message({{"w", DType::kF32, {2, 3}}, {"v", DType::kF32, {1}}});
  EXPECT_THAT(misshapen, HasSubstr("tensor w is [2, 2] instead of [2, 3]"));
  EXPECT_THAT(misshapen, HasSubstr("tensor v is missing"));
  EXPECT_THAT(message({}), HasSubstr("tensor w is not in this model"));
}

TEST(InitialWeightsTest, BFloat16AndDoublesAreConvertedIntegersAndInfinitiesRefused) {
  const TemporaryDirectory directory;
  const std::string path = directory.Path("w.safetensors");
  const std::unique_ptr<Device> device = *MakeDevice("cpu");
  std::vector<float> column(2);
  const Piece piece = {"w",
                       {2, 2},
                       Box::Range({2, 2}, 1, 1, 2),
                       Tensor(reinterpret_cast<std::byte*>(column.data()), DType::kF32, {2, 1})};
  const auto load = [&](DType dtype, const void* values) {
    WriteTensor(path, dtype, values);
    return LoadInitialWeights(path, {{"w", DType::kF32, {2, 2}}}, {piece}, *device);
  };
  const double doubles[] = {1, 2.5, 3, -4};
  ASSERT_TRUE(load(DType::kF64, doubles).ok());
  EXPECT_EQ(column, (std::vector<float>{2.5f, -4.f}));
  const uint16_t bfloats[] = {0, 0x3F80, 0, 0xC040};
  ASSERT_TRUE(load(DType::kBF16, bfloats).ok());
  EXPECT_EQ(column, (std::vector<float>{1.f, -3.f}));
  const int32_t integers[] = {1, 2, 3, 4};
  EXPECT_THAT(std::string(load(DType::kI32, integers).message()), HasSubstr("dtype I32"));
  const double too_large[] = {1, 1e300, 3, 4};  // for float32
  const absl::Status status = load(DType::kF64, too_large);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor w holds inf"));
}

}  // namespace
}  // namespace twinstream
