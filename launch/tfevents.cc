#include "launch/tfevents.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/crc32c.h"

namespace twinstream {
namespace {

// Protocol buffers' wire format: a key (field number, wire type), then the value.
enum class WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void AppendVarint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

template <typename Number>
void AppendLittleEndian(Number number, std::string& out) {
  std::array<char, sizeof(Number)> bytes;
  std::memcpy(bytes.data(), &number, sizeof(Number));
  out.append(bytes.data(), bytes.size());
}

void AppendKey(int field, WireType type, std::string& out) {
  AppendVarint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type), out);
}

void AppendBytes(int field, absl::string_view bytes, std::string& out) {
  AppendKey(field, WireType::kBytes, out);
  AppendVarint(bytes.size(), out);
  out.append(bytes.data(), bytes.size());
}

// message Event { double wall_time = 1; int64 step = 2; string file_version = 3;
//                 Summary summary = 5; SessionLog session_log = 7; }
std::string EventAt(int64_t step) {
  const double seconds =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string event;
  AppendKey(1, WireType::kFixed64, event);
  AppendLittleEndian(seconds, event);
  AppendKey(2, WireType::kVarint, event);
  AppendVarint(static_cast<uint64_t>(step), event);
  return event;
}

// CRCs of data that holds CRCs are weak, so the format stores them rotated and shifted.
uint32_t MaskedCrc(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string HostName() {
  std::array<char, 256> name = {};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

}  // namespace

absl::StatusOr<TfEventsWriter> TfEventsWriter::Create(const std::string& directory,
                                                      int64_t first_step) {
  if (absl::Status s = MakeDirectories(directory); !s.ok()) return s;
  const int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(
                              std::chrono::system_clock::now().time_since_epoch())
                              .count();
  const std::string stem = absl::StrFormat("%s/events.out.tfevents.%010d.%s.%d.", directory,
                                           seconds, HostName(), getpid());
  int number = 0;
  while (std::filesystem::exists(absl::StrCat(stem, number))) ++number;
  absl::StatusOr<OutputFile> file = OutputFile::Create(absl::StrCat(stem, number));
  if (!file.ok()) return file.status();
  TfEventsWriter writer(*std::move(file));

  std::string version = EventAt(0);
  AppendBytes(3, "brain.Event:2", version);
  if (absl::Status s = writer.WriteRecord(version); !s.ok()) return s;

  // message SessionLog { enum { START = 1; } status = 1; }
  std::string status;
  AppendKey(1, WireType::kVarint, status);
  AppendVarint(1, status);
  std::string start = EventAt(first_step);
  AppendBytes(7, status, start);
  if (absl::Status s = writer.WriteRecord(start); !s.ok()) return s;
  return writer;
}

// message Summary { message Value { string tag = 1; float simple_value = 2; } repeated Value
// value = 1; }
absl::Status TfEventsWriter::Write(int64_t step, absl::Span<const TaggedScalar> scalars) {
  std::string summary;
  for (const TaggedScalar& scalar : scalars) {
    std::string value;
    AppendBytes(1, scalar.tag, value);
    AppendKey(2, WireType::kFixed32, value);
    AppendLittleEndian(static_cast<float>(scalar.value), value);
    AppendBytes(1, value, summary);
  }
  std::string event = EventAt(step);
  AppendBytes(5, summary, event);
  return WriteRecord(event);
}

// uint64 length, uint32 masked CRC of the length, the event, uint32 masked CRC of the event.
absl::Status TfEventsWriter::WriteRecord(absl::string_view event) {
  std::string record;
  AppendLittleEndian(static_cast<uint64_t>(event.size()), record);
  AppendLittleEndian(MaskedCrc(record), record);
  record.append(event.data(), event.size());
  AppendLittleEndian(MaskedCrc(event), record);
  return file_.Write(record);
}

}  // namespace twinstream
