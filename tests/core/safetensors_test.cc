#include "core/safetensors.h"

#include <cmath>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temporary_directory.h"

namespace twinstream {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

class SafetensorsTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return directory_.Path(name); }

  // A file of this header and `data` bytes; `length` differs from the header's for hostile ones.
  std::string File(const std::string& header, size_t data, uint64_t length) const {
    std::string text(8, '\0');
    std::memcpy(text.data(), &length, 8);
    text += header + std::string(data, '\1');
    const std::string path = Path("hostile.safetensors");
    EXPECT_TRUE(ReplaceFile(path, text).ok());
    return path;
  }
  std::string Refusal(const std::string& header, size_t data) const {
    const std::string path = File(header, data, header.size());
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << header;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(path));
    return std::string(file.status().message());
  }

  TemporaryDirectory directory_;
};

template <typename T>
absl::Span<const std::byte> BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

absl::Status Write(const std::string& path, const std::vector<TensorSpec>& specs,
                   const std::vector<absl::Span<const std::byte>>& data) {
  auto writer = SafetensorsWriter::Create(path, specs, {{"format", "pt"}, {"a \"b\"", "\\n\n"}});
  if (!writer.ok()) return writer.status();
  for (absl::Span<const std::byte> bytes : data) {
    if (absl::Status s = writer->Append(bytes); !s.ok()) return s;
  }
  return writer->Finish();
}

TEST_F(SafetensorsTest, WhatIsWrittenIsRead) {
  const std::vector<float> weights = {1.5f, -2.f, 3e-38f, 4.f, 5.f, 6.f};
  const std::vector<int32_t> tokens = {7, -8};
  const std::vector<double> scalar = {M_PI};
  const std::vector<BFloat16> half = {{0x3FC0}, {0xC000}, {0x0001}};
  const std::string odd = "quote\" back\\slash \n tab\t \xC3\xA9";
  ASSERT_TRUE(Write(Path("a"),
                    {{"w", DType::kF32, {2, 3}},
                     {odd, DType::kI32, {2}},
                     {"empty", DType::kF32, {0, 4}},
                     {"scalar", DType::kF64, {}},
                     {"half", DType::kBF16, {3}}},
                    {BytesOf(weights), BytesOf(tokens), {}, BytesOf(scalar), BytesOf(half)})
                  .ok());
  const absl::StatusOr<SafetensorsSource> source = SafetensorsSource::Open(Path("a"));
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_EQ(source->arrays().size(), 5u);
  const StoredArray* w = source->Find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->shape, (Shape{2, 3}));
  EXPECT_EQ(ToFloats(w->dtype, w->bytes), weights);
  EXPECT_EQ(ToDoubles("I32", source->Find(odd)->bytes), (std::vector<double>{7, -8}));
  EXPECT_EQ(source->Find("empty")->shape, (Shape{0, 4}));
  EXPECT_EQ(ToDoubles("F64", source->Find("scalar")->bytes), scalar);
  EXPECT_EQ(ToFloats("BF16", source->Find("half")->bytes),
            (std::vector<float>{1.5f, -2.f, std::ldexp(1.f, -133)}));
  EXPECT_EQ(source->Find("absent"), nullptr);
}

TEST_F(SafetensorsTest, DataBeginAtAMultipleOfEightWhereTheWriterSays) {
  for (size_t length = 1; length < 10; ++length) {
    const std::vector<float> value = {42.f};
    auto writer = SafetensorsWriter::Create(
        Path("a"), {{std::string(length, 'n'), DType::kF32, {1}}, {"m", DType::kF32, {1}}}, {});
    ASSERT_TRUE(writer.ok());
    EXPECT_EQ(writer->offset(0) % 8, 0);
    EXPECT_EQ(writer->offset(1), writer->offset(0) + 4);
    const int64_t offset = writer->offset(0);
    const int64_t file_bytes = writer->file_bytes();
    ASSERT_TRUE(writer->Append(BytesOf(value)).ok() && writer->Append(BytesOf(value)).ok());
    ASSERT_TRUE(writer->Finish().ok());
    const absl::StatusOr<std::string> text = ReadFile(Path("a"));
    ASSERT_TRUE(text.ok());
    EXPECT_EQ(static_cast<int64_t>(text->size()), file_bytes);
    EXPECT_EQ(text->substr(static_cast<size_t>(offset), 4),
              std::string(reinterpret_cast<const char*>(value.data()), 4));
  }
}

TEST_F(SafetensorsTest, MetadataSurvives) {
  ASSERT_TRUE(Write(Path("a"), {}, {}).ok());
  const auto file = SafetensorsFile::Open(Path("a"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata().at("format"), "pt");
  EXPECT_EQ(file->metadata().at("a \"b\""), "\\n\n");
}

TEST_F(SafetensorsTest, EveryProperPrefixOfAFileIsRefused) {
  const std::vector<float> values = {1, 2, 3, 4};
  ASSERT_TRUE(Write(Path("a"), {{"w", DType::kF32, {4}}}, {BytesOf(values)}).ok());
  ASSERT_TRUE(SafetensorsFile::Open(Path("a")).ok());
  for (size_t size = std::filesystem::file_size(Path("a")); size-- > 0;) {
    std::filesystem::resize_file(Path("a"), size);
    EXPECT_FALSE(SafetensorsFile::Open(Path("a")).ok()) << size;
  }
}

TEST_F(SafetensorsTest, HostileLengthsAreRefused) {
  for (uint64_t length : {uint64_t{3}, uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    const auto file = SafetensorsFile::Open(File("{}", 0, length));
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << length;
  }
}

TEST_F(SafetensorsTest, HostileHeadersAreRefusedByFileAndTensor) {
  EXPECT_THAT(Refusal("not json", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal("[1, 2]", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal(std::string(100000, '['), 0), HasSubstr("not a JSON object"));
  const auto entry = [](const char* dtype, const char* shape, const char* offsets) {
    return absl::StrCat(R"({"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)",
                        offsets, "}");
  };
  const std::string good = entry("F32", "[1]", "[0,4]");
  const auto one = [](const std::string& text) { return absl::StrCat(R"({"w":)", text, "}"); };
  EXPECT_TRUE(SafetensorsFile::Open(File(one(good), 4, one(good).size())).ok());

  EXPECT_THAT(Refusal(absl::StrCat(R"({"w":)", good, R"(,"w":)", good, "}"), 4),
              AllOf(HasSubstr("\"w\""), HasSubstr("more than once")));
  for (const std::string& text :
       {one("7"), one("{}"), one(entry("F16", "[1]", "[0,2]")), one(entry("F32", "[-1]", "[0,4]")),
        one(entry("F32", "[1.0]", "[0,4]")), one(entry("F32", "[1]", "[-4,0]")),
        one(entry("F32", "[1]", "[4,0]")), one(entry("F32", "[1]", "[0]")),
        one(entry("F32", "[2]", "[0,4]")), one(entry("F32", "[1,1,1,1,1]", "[0,4]")),
        one(entry("F32", "[4294967296,4294967296,4294967296]", "[0,0]")),
        one(entry("F32", "[18446744073709551615]", "[0,4]")),
        one(entry("F32", "[2]", "[0,8]"))}) {  // beyond the file's end
    EXPECT_THAT(Refusal(text, 4), HasSubstr("tensor w ")) << text;
  }
  const auto two = [&](const char* first, const char* second) {
    return absl::StrCat(R"({"v":)", entry("F32", "[1]", first), R"(,"w":)",
                        entry("F32", "[1]", second), "}");
  };
  EXPECT_THAT(Refusal(two("[0,4]", "[2,6]"), 6), HasSubstr("tensor w overlaps"));
  EXPECT_THAT(Refusal(two("[0,4]", "[0,4]"), 4), HasSubstr("tensor w overlaps"));
  EXPECT_THAT(Refusal(two("[0,4]", "[6,10]"), 10), HasSubstr("tensor w leaves bytes"));
  EXPECT_THAT(Refusal(one(good), 5), HasSubstr("the last 1 bytes"));
  EXPECT_THAT(Refusal(R"({"__metadata__":{"a":1}})", 0), HasSubstr("__metadata__"));
  EXPECT_THAT(Refusal(R"({"__metadata__":"a"})", 0), HasSubstr("__metadata__"));
}

TEST_F(SafetensorsTest, DirectoryWithIndexIsOneSource) {
  const std::vector<float> a = {1, 2}, b = {3};
  ASSERT_TRUE(Write(Path("one.safetensors"), {{"a", DType::kF32, {2}}}, {BytesOf(a)}).ok());
  ASSERT_TRUE(Write(Path("two.safetensors"), {{"b", DType::kF32, {1}}}, {BytesOf(b)}).ok());
  const std::string index = Path("model.safetensors.index.json");
  EXPECT_EQ(SafetensorsSource::Open(directory_.path()).status().code(),
            absl::StatusCode::kNotFound);
  ASSERT_TRUE(
      ReplaceFile(index, R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})").ok());
  absl::StatusOr<SafetensorsSource> source = SafetensorsSource::Open(directory_.path());
  ASSERT_TRUE(source.ok()) << source.status();
  const SafetensorsSource moved = *std::move(source);
  EXPECT_EQ(ToFloats("F32", moved.Find("a")->bytes), a);
  EXPECT_EQ(ToFloats("F32", moved.Find("b")->bytes), b);

  for (const char* map : {R"({"a":"two.safetensors"})", R"({"a":"../x"})", R"({"a":1})",
                          R"({"a":"absent.safetensors"})", "7"}) {
    ASSERT_TRUE(ReplaceFile(index, absl::StrCat(R"({"weight_map":)", map, "}")).ok());
    EXPECT_FALSE(SafetensorsSource::Open(directory_.path()).ok()) << map;
  }
}

}  // namespace
}  // namespace twinstream
