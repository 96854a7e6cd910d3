#include "launch/command_export.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "parallel/checkpoint_directory.h"
#include "parallel/checkpoint_reader.h"

namespace twinstream {
namespace {

constexpr int64_t kFileBytes = 5'000'000'000;  // Hugging Face's customary limit

// Tensors of one output file.
struct Part {
  std::vector<const StoredTensor*> tensors;
  std::vector<TensorSpec> specs;
  int64_t bytes = 0;
};

// The model's tensors in order, a new part where the next would exceed file_bytes.
std::vector<Part> SplitIntoParts(const Manifest& manifest, int64_t file_bytes) {
  std::vector<Part> parts(1);
  for (const StoredTensor& tensor : manifest.tensor()) {
    if (!IsModelTensor(tensor.name())) continue;
    const TensorSpec spec = {tensor.name(), *DTypeNamed(tensor.dtype()), ShapeOf(tensor)};
    if (!parts.back().specs.empty() && parts.back().bytes + spec.bytes() > file_bytes) {
      parts.emplace_back();
    }
    parts.back().tensors.push_back(&tensor);
    parts.back().specs.push_back(spec);
    parts.back().bytes += spec.bytes();
  }
  return parts;
}

absl::Status WriteTensors(CheckpointReader& reader, const Part& part, const std::string& path) {
  // transformers asks for the metadata.
  absl::StatusOr<SafetensorsWriter> writer =
      SafetensorsWriter::Create(path, part.specs, {{"format", "pt"}});
  if (!writer.ok()) return writer.status();
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < part.tensors.size(); ++i) {
    bytes.resize(static_cast<size_t>(part.specs[i].bytes()));
    const Box whole = Box::Whole(part.specs[i].shape);
    if (absl::Status s = reader.Read(*part.tensors[i], whole, absl::MakeSpan(bytes)); !s.ok()) {
      return s;
    }
    if (absl::Status s = writer->Append(bytes); !s.ok()) return s;
  }
  return writer->Finish();
}

// Under a temporary name, renamed when it is whole and on the disk, removed when it cannot be.
absl::Status WritePart(CheckpointReader& reader, const Part& part, const std::string& path) {
  const std::string temporary = path + ".tmp";
  absl::Status status = WriteTensors(reader, part, temporary);
  if (status.ok()) status = Rename(temporary, path);
  if (!status.ok()) RemoveFile(temporary).IgnoreError();
  return status;
}

std::string IndexText(const std::vector<Part>& parts, const std::vector<std::string>& names) {
  int64_t bytes = 0;
  std::vector<std::string> entries;
  for (size_t i = 0; i < parts.size(); ++i) {
    bytes += parts[i].bytes;
    for (const TensorSpec& spec : parts[i].specs) {
      // Names of model tensors are plain: letters, digits, dots and underscores.
      entries.push_back(absl::StrFormat("    \"%s\": \"%s\"", spec.name, names[i]));
    }
  }
  return absl::StrCat("{\n  \"metadata\": {\"total_size\": ", bytes, "},\n  \"weight_map\": {\n",
                      absl::StrJoin(entries, ",\n"), "\n  }\n}\n");
}

}  // namespace

absl::Status ExportWeights(const std::string& step_directory, const std::string& output,
                           int64_t file_bytes) {
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(step_directory);
  if (!reader.ok()) return reader.status();
  if (absl::Status s = MakeDirectories(output); !s.ok()) return s;
  const std::vector<Part> parts = SplitIntoParts(reader->manifest(), file_bytes);
  const std::string single = absl::StrCat(output, "/model.safetensors");
  const std::string index = single + ".index.json";
  if (parts.size() == 1) {
    if (absl::Status s = WritePart(*reader, parts[0], single); !s.ok()) return s;
    if (absl::Status s = RemoveFile(index); !s.ok()) return s;  // of an earlier export
    return SyncDirectory(output);
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < parts.size(); ++i) {
    names.push_back(absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, parts.size()));
    const std::string path = absl::StrCat(output, "/", names.back());
    if (absl::Status s = WritePart(*reader, parts[i], path); !s.ok()) return s;
  }
  if (absl::Status s = ReplaceFile(index, IndexText(parts, names)); !s.ok()) return s;
  return RemoveFile(single);  // of an earlier export; readers would prefer it
}

absl::Status CommandExport(const std::string& checkpoint, const std::string& output,
                           const std::string& format) {
  if (format == "olmo") return absl::UnimplementedError("--format=olmo is not built yet");
  if (format != "safetensors") {
    return absl::InvalidArgumentError(
        absl::StrCat("--format=", format, " is unknown; use --format=safetensors"));
  }
  if (output.empty()) {
    return absl::InvalidArgumentError("--output is missing: name the directory to write into");
  }
  const absl::StatusOr<std::string> step_directory = FindCheckpoint(checkpoint);
  if (!step_directory.ok()) return step_directory.status();
  if (absl::Status s = ExportWeights(*step_directory, output, kFileBytes); !s.ok()) return s;
  absl::PrintF("%s: weights written to %s\n", *step_directory, output);
  return absl::OkStatus();
}

}  // namespace twinstream
