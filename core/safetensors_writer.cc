#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/safetensors.h"
#include "nlohmann/json.hpp"

namespace twinstream {
namespace {

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The JSON header for tensors one after another, padded so that the data begin at a multiple of 8.
std::string Header(const std::vector<TensorSpec>& specs,
                   const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  const char* separator = "";
  if (!metadata.empty()) {
    absl::StrAppend(&json, "\"__metadata__\":{");
    for (const auto& [key, value] : metadata) {
      absl::StrAppend(&json, std::exchange(separator, ","), Quoted(key), ":", Quoted(value));
    }
    absl::StrAppend(&json, "}");
  }
  int64_t offset = 0;
  for (const TensorSpec& spec : specs) {
    absl::StrAppend(&json, std::exchange(separator, ","), Quoted(spec.name), ":{\"dtype\":\"",
                    NameOf(spec.dtype), "\",\"shape\":", spec.shape.ToString(),
                    ",\"data_offsets\":[", offset, ",", offset + spec.bytes(), "]}");
    offset += spec.bytes();
  }
  absl::StrAppend(&json, "}");
  while (json.size() % 8 != 0) json += ' ';
  return json;
}

}  // namespace

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, std::vector<TensorSpec> specs,
    const std::map<std::string, std::string>& metadata) {
  absl::StatusOr<OutputFile> file = OutputFile::Create(path);
  if (!file.ok()) return file.status();
  const std::string header = Header(specs, metadata);
  const uint64_t length = header.size();
  std::string begin(sizeof(length), '\0');
  std::memcpy(begin.data(), &length, sizeof(length));
  if (absl::Status s = file->Write(begin + header); !s.ok()) return s;

  SafetensorsWriter writer(*std::move(file), std::move(specs));
  int64_t offset = writer.file_.bytes_written();
  for (const TensorSpec& spec : writer.specs_) {
    writer.offsets_.push_back(offset);
    offset += spec.bytes();
  }
  writer.offsets_.push_back(offset);
  return writer;
}

absl::Status SafetensorsWriter::Append(absl::Span<const std::byte> bytes) {
  Check(next_ < specs_.size() && static_cast<int64_t>(bytes.size()) == specs_[next_].bytes(),
        "%d bytes as tensor %d of %d", bytes.size(), next_, specs_.size());
  ++next_;
  return file_.Write(bytes);
}

absl::Status SafetensorsWriter::Finish() {
  Check(next_ == specs_.size(), "%d of %d tensors are written", next_, specs_.size());
  return file_.SyncAndClose();
}

}  // namespace twinstream
