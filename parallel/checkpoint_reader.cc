#include "parallel/checkpoint_reader.h"

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/crc32c.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace twinstream {
namespace {

constexpr int kFormatVersion = 1;
constexpr absl::string_view kDigestField = "crc32c: ";  // of the last line

// Keeps the first error.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrFormat("%d:%d: %s", line + 1, column + 1, message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// A file of a checkpoint that is not there, or no file, is damage; what cannot be read stays what
// it is.
absl::Status OfCheckpoint(const absl::Status& status) {
  const bool lost = absl::IsNotFound(status) || absl::IsInvalidArgument(status);
  return lost ? absl::DataLossError(status.message()) : status;
}

// The text before the digest's line; DATA_LOSS unless the digest is that of this text.
absl::StatusOr<absl::string_view> DigestedPart(absl::string_view text, const std::string& path) {
  const size_t line = text.rfind(absl::StrCat("\n", kDigestField));
  uint32_t digest = 0;
  if (line == absl::string_view::npos || !absl::EndsWith(text, "\n") ||
      !absl::SimpleAtoi(text.substr(line + 1 + kDigestField.size()), &digest)) {
    return absl::DataLossError(absl::StrCat(path, " has no digest at its end: it is truncated"));
  }
  const absl::string_view part = text.substr(0, line + 1);
  if (Crc32c(part) != digest) {
    return absl::DataLossError(absl::StrCat(path, " was changed or damaged: its digest is ",
                                            Crc32c(part), ", not ", digest));
  }
  return part;
}

}  // namespace

std::string ManifestText(Manifest manifest) {
  manifest.set_format_version(kFormatVersion);
  manifest.clear_crc32c();
  std::string text;
  google::protobuf::TextFormat::PrintToString(manifest, &text);
  return absl::StrCat(text, kDigestField, Crc32c(text), "\n");
}

absl::StatusOr<Manifest> ReadManifest(const std::string& step_directory) {
  const std::string path = absl::StrCat(step_directory, "/manifest.textproto");
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return OfCheckpoint(text.status());
  const absl::StatusOr<absl::string_view> part = DigestedPart(*text, path);
  if (!part.ok()) return part.status();
  Manifest manifest;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(std::string(*part), &manifest)) {
    // The digest is right: nothing is damaged.
    return absl::FailedPreconditionError(absl::StrCat(
        path, ":", error.text(), " (this program reads format version ", kFormatVersion, ")"));
  }
  if (manifest.format_version() != kFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": format_version is ", manifest.format_version(),
                     "; this program reads version ", kFormatVersion));
  }
  if (absl::Status s = CheckManifest(manifest); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat(path, ": ", s.message()));
  }
  return manifest;
}

absl::StatusOr<MappedFile> OpenShard(const std::string& step_directory, const ShardFile& shard) {
  const std::string path = absl::StrCat(step_directory, "/", shard.name());
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return OfCheckpoint(file.status());
  if (static_cast<int64_t>(file->bytes().size()) != shard.bytes()) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", file->bytes().size(), " bytes instead of ", shard.bytes()));
  }
  return file;
}

bool IsModelTensor(absl::string_view name) {
  return !absl::StartsWith(name, "adam_m.") && !absl::StartsWith(name, "adam_v.");
}

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const std::string& step_directory) {
  absl::StatusOr<Manifest> manifest = ReadManifest(step_directory);
  if (!manifest.ok()) return manifest.status();
  return CheckpointReader(step_directory, *std::move(manifest));
}

CheckpointReader::CheckpointReader(std::string step_directory, Manifest manifest)
    : step_directory_(std::move(step_directory)),
      manifest_(std::move(manifest)),
      files_(static_cast<size_t>(manifest_.file_size())) {}

absl::StatusOr<const std::byte*> CheckpointReader::Fetch(const StoredTensor& tensor,
                                                         const StoredBox& stored) {
  const ShardFile& shard = manifest_.file(stored.file());
  const auto box = [&] {
    return absl::StrCat("tensor ", tensor.name(), ", box ", BoxOf(stored).ToString(), ": ");
  };
  std::unique_ptr<MappedFile>& file = files_[static_cast<size_t>(stored.file())];
  if (file == nullptr) {
    absl::StatusOr<MappedFile> opened = OpenShard(step_directory_, shard);
    if (!opened.ok()) {
      return absl::Status(opened.status().code(), absl::StrCat(box(), opened.status().message()));
    }
    file = std::make_unique<MappedFile>(*std::move(opened));
  }
  const int64_t bytes = BoxOf(stored).elements() * SizeOf(*DTypeNamed(tensor.dtype()));
  const auto content =
      file->bytes().subspan(static_cast<size_t>(stored.offset()), static_cast<size_t>(bytes));
  if (verified_.count(&stored) == 0) {
    if (ExtendCrc32c(0, content) != stored.crc32c()) {
      return absl::DataLossError(
          absl::StrCat(file->path(), ": ", box(),
                       "the stored bytes do not match their digest; they were changed or damaged"));
    }
    verified_.insert(&stored);
  }
  return content.data();
}

absl::Status CheckpointReader::Read(const StoredTensor& tensor, const Box& needed,
                                    absl::Span<std::byte> to) {
  const int64_t element_bytes = SizeOf(*DTypeNamed(tensor.dtype()));
  Check(static_cast<int64_t>(to.size()) == needed.elements() * element_bytes,
        "%d bytes for box %s of %s", to.size(), needed.ToString(), tensor.name());
  for (const BoxRead& read : PlanReads(tensor, needed)) {
    const absl::StatusOr<const std::byte*> from = Fetch(tensor, *read.stored);
    if (!from.ok()) return from.status();
    CopyBox(read.common, read.box, *from, needed, to.data(), element_bytes);
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::Verify(const StoredTensor& tensor, const StoredBox& box) {
  return Fetch(tensor, box).status();
}

}  // namespace twinstream
