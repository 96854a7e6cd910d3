#include "launch/tfevents.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <vector>

#include "gtest/gtest.h"

namespace twinstream {
namespace {

// An independent reader: CRC-32C bit by bit, and a decoder of any protobuf message.
uint32_t SlowMaskedCrc(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
  }
  crc = ~crc;
  return static_cast<uint32_t>(((uint64_t{crc} >> 15) | (uint64_t{crc} << 17)) + 0xa282ead8u);
}

template <typename T>
T Decode(const std::string& bytes) {
  T value;
  EXPECT_EQ(bytes.size(), sizeof(T));
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

uint64_t TakeVarint(const std::string& bytes, size_t& at) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const uint8_t byte = static_cast<uint8_t>(bytes.at(at++));
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

// Field number to raw values; varints as eight bytes.
using Message = std::multimap<uint64_t, std::string>;
Message Parse(const std::string& bytes) {
  Message message;
  for (size_t at = 0; at < bytes.size();) {
    const uint64_t key = TakeVarint(bytes, at);
    std::string value;
    if (key % 8 == 0) {
      const uint64_t number = TakeVarint(bytes, at);
      value.assign(reinterpret_cast<const char*>(&number), 8);
    } else {
      const size_t size = key % 8 == 1 ? 8 : key % 8 == 5 ? 4 : TakeVarint(bytes, at);
      EXPECT_LE(at + size, bytes.size());
      value = bytes.substr(at, size);
      at += size;
    }
    message.emplace(key / 8, value);
  }
  return message;
}

std::string Field(const Message& message, uint64_t number) {
  EXPECT_EQ(message.count(number), 1u) << number;
  return message.find(number)->second;
}

std::vector<Message> ReadEvents(const std::string& path) {
  std::ostringstream stream;
  stream << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string file = stream.str();
  std::vector<Message> events;
  for (size_t at = 0; at < file.size();) {
    const std::string length = file.substr(at, 8);
    const uint64_t size = Decode<uint64_t>(length);
    EXPECT_EQ(Decode<uint32_t>(file.substr(at + 8, 4)), SlowMaskedCrc(length));
    const std::string event = file.substr(at + 12, size);
    EXPECT_EQ(Decode<uint32_t>(file.substr(at + 12 + size, 4)), SlowMaskedCrc(event));
    events.push_back(Parse(event));
    at += size + 16;
  }
  return events;
}

class TfEventsTest : public ::testing::Test {
 protected:
  ~TfEventsTest() override { std::filesystem::remove_all(folder_); }
  std::string folder_ =
      (std::filesystem::temp_directory_path() / ("tfevents_test." + std::to_string(getpid())))
          .string();
};

TEST_F(TfEventsTest, AnIndependentReaderFindsEveryScalar) {
  absl::StatusOr<TfEventsWriter> writer = TfEventsWriter::Create(folder_ + "/new", 1);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::string long_tag(300, 't');  // its length takes two bytes
  ASSERT_TRUE(writer->Write(1, {{"loss", 5.545177}, {long_tag, -2}}).ok());
  ASSERT_TRUE(writer->Write(int64_t{1} << 40, {{"loss", std::nan("")}}).ok());

  const std::vector<Message> events = ReadEvents(writer->path());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(Field(events[0], 3), "brain.Event:2");
  EXPECT_EQ(Decode<uint64_t>(Field(events[1], 2)), 1u);
  EXPECT_EQ(Decode<uint64_t>(Field(Parse(Field(events[1], 7)), 1)), 1u);  // SessionLog.START
  EXPECT_NEAR(Decode<double>(Field(events[2], 1)), static_cast<double>(std::time(nullptr)), 60);
  EXPECT_EQ(Decode<uint64_t>(Field(events[2], 2)), 1u);

  const Message summary = Parse(Field(events[2], 5));
  ASSERT_EQ(summary.count(1), 2u);
  const Message loss = Parse(summary.find(1)->second);
  EXPECT_EQ(Field(loss, 1), "loss");
  EXPECT_EQ(Decode<float>(Field(loss, 2)), 5.545177f);
  const Message other = Parse(std::next(summary.find(1))->second);
  EXPECT_EQ(Field(other, 1), long_tag);
  EXPECT_EQ(Decode<float>(Field(other, 2)), -2.0f);

  EXPECT_EQ(Decode<uint64_t>(Field(events[3], 2)), uint64_t{1} << 40);
  EXPECT_TRUE(std::isnan(Decode<float>(Field(Parse(Field(Parse(Field(events[3], 5)), 1)), 2))));
}

TEST_F(TfEventsTest, EveryWriterHasItsOwnFile) {
  absl::StatusOr<TfEventsWriter> first = TfEventsWriter::Create(folder_, 1);
  absl::StatusOr<TfEventsWriter> second = TfEventsWriter::Create(folder_, 5);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->path(), second->path());
  EXPECT_EQ(first->path().find(folder_ + "/events.out.tfevents."), 0u);
  EXPECT_EQ(Decode<uint64_t>(Field(ReadEvents(second->path())[1], 2)), 5u);
}

TEST_F(TfEventsTest, AFolderThatCannotBeMadeIsNamed) {
  std::ofstream(folder_) << "a file";
  const absl::Status status = TfEventsWriter::Create(folder_ + "/sub", 1).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(folder_), absl::string_view::npos);
}

}  // namespace
}  // namespace twinstream
