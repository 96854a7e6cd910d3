// Safetensors files (github.com/huggingface/safetensors): 8 bytes header length, a JSON header, the
// tensors' bytes. Dtypes F32, BF16, F64, I32 and I64; up to four dimensions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/file.h"
#include "core/tensor.h"

namespace twinstream {

// One tensor of a file. Its bytes live as long as the SafetensorsFile.
struct StoredArray {
  std::string name;
  std::string dtype;  // F32, BF16, F64, I32 or I64
  Shape shape;
  absl::Span<const std::byte> bytes;  // row-major, little-endian

  int64_t element_bytes() const;
};

// Little-endian numbers of a dtype of StoredArray as float32 (F64 is rounded) or double;
// I64 beyond 2^53 is rounded.
std::vector<float> ToFloats(absl::string_view dtype, absl::Span<const std::byte> bytes);
std::vector<double> ToDoubles(absl::string_view dtype, absl::Span<const std::byte> bytes);

// A mapped file whose header has been checked: every tensor lies inside the file, none overlaps
// another, no byte is left over.
class SafetensorsFile {
 public:
  // INVALID_ARGUMENT or a file error; names the file and the tensor.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<StoredArray>& arrays() const { return arrays_; }  // in file order
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  std::vector<StoredArray> arrays_;
  std::map<std::string, std::string> metadata_;
};

// Named tensors of a model, from one file or from a directory with model.safetensors or
// model.safetensors.index.json and the files that it names.
class SafetensorsSource {
 public:
  static absl::StatusOr<SafetensorsSource> Open(const std::string& path);

  // By name; points into files that this object owns.
  const std::map<std::string, const StoredArray*>& arrays() const { return arrays_; }
  // Of a single file; empty with an index.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // nullptr if there is none.
  const StoredArray* Find(const std::string& name) const;

 private:
  absl::Status OpenIndexed(const std::string& directory, const std::string& index_path);

  std::vector<SafetensorsFile> files_;
  std::map<std::string, const StoredArray*> arrays_;
  std::map<std::string, std::string> metadata_;
};

// Writes a file from begin to end: the header first, so all specs are known at the start.
class SafetensorsWriter {
 public:
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, std::vector<TensorSpec> specs,
      const std::map<std::string, std::string>& metadata);

  // Bytes from the file's begin to tensor i; a multiple of 8 for the first.
  int64_t offset(size_t i) const { return offsets_[i]; }
  int64_t file_bytes() const { return offsets_.back(); }
  // The next tensor's bytes, whole.
  absl::Status Append(absl::Span<const std::byte> bytes);
  // After the last tensor: the file is on the disk when this returns OK.
  absl::Status Finish();

 private:
  SafetensorsWriter(OutputFile file, std::vector<TensorSpec> specs)
      : file_(std::move(file)), specs_(std::move(specs)) {}

  OutputFile file_;
  std::vector<TensorSpec> specs_;
  std::vector<int64_t> offsets_;  // specs_.size() + 1; the last is the file's size
  size_t next_ = 0;
};

}  // namespace twinstream
