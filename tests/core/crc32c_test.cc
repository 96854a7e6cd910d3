#include "core/crc32c.h"

#include <string>

#include "gtest/gtest.h"

namespace twinstream {
namespace {

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// RFC 3720, appendix B.4, and the usual check value.
TEST(Crc32cTest, PublishedVectors) {
  std::string rising(32, '\0');
  for (size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<char>(i);
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(Crc32c(rising), 0x46DD794Eu);
}

TEST(Crc32cTest, InstructionAndTableAgreeAtEveryLengthAlignmentAndSplit) {
  std::string text;
  for (uint32_t i = 0; i < 200; ++i) text.push_back(static_cast<char>((i * 2654435761u) >> 24));
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t size = 0; size + begin <= text.size(); ++size) {
      const auto bytes = BytesOf(text).subspan(begin, size);
      const uint32_t whole = ExtendCrc32cByTable(0, bytes);
      EXPECT_EQ(ExtendCrc32c(0, bytes), whole);
      const size_t cut = size / 3;
      EXPECT_EQ(ExtendCrc32c(ExtendCrc32c(0, bytes.first(cut)), bytes.subspan(cut)), whole);
    }
  }
}

}  // namespace
}  // namespace twinstream
