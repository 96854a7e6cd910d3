// Files on disk. Every failure is a Status that names the path and the reason.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace twinstream {

// A file read through memory that the page cache backs. Move-only; unmapped at the end of its life.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  absl::Span<const std::byte> bytes() const { return bytes_; }

 private:
  MappedFile(std::string path, absl::Span<const std::byte> bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  std::string path_;
  absl::Span<const std::byte> bytes_;
};

// A file that is written at its end. Move-only.
class OutputFile {
 public:
  // A new file in the place of whatever had its name, which RemoveFile removes: what an old link
  // led to stays as it was. FAILED_PRECONDITION: a directory has the name.
  static absl::StatusOr<OutputFile> Create(const std::string& path);
  // An old file goes on at its end.
  static absl::StatusOr<OutputFile> Append(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();  // closes without any promise about the disk

  // DATA_LOSS: somebody removed the file meanwhile, and nobody would read these bytes.
  absl::Status Write(absl::Span<const std::byte> bytes);
  absl::Status Write(absl::string_view text);
  // What was written is on the disk when this returns OK. Once, at the end.
  absl::Status SyncAndClose();
  const std::string& path() const { return path_; }
  int64_t bytes_written() const { return bytes_written_; }  // by this object

 private:
  OutputFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_ = -1;
  int64_t bytes_written_ = 0;
};

// Keeps other processes that take the same file as their lock away, until its life or that of the
// process ends. Move-only. Where the file system knows no locks it keeps nobody away.
class FileLock {
 public:
  // Makes the file if there is none. UNAVAILABLE: another holder still has it after `patience`.
  static absl::StatusOr<FileLock> Take(const std::string& path, std::chrono::seconds patience);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();  // the file stays

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}

  int descriptor_ = -1;
};

absl::StatusOr<std::string> ReadFile(const std::string& path);
// Readers see the old text or the new one, even after a crash: temporary file, fsync, rename, fsync
// of the directory. After a failure the temporary file is gone.
absl::Status ReplaceFile(const std::string& path, absl::string_view text);

// FAILED_PRECONDITION where ReplaceFile would fail because a directory has the file's name, or that
// of its temporary file.
absl::Status CheckReplaceable(const std::string& path);

absl::Status MakeDirectories(const std::string& path);  // and its parents; fine if they exist
// Whether MakeDirectories and writing into `path` can be expected to succeed; makes nothing.
absl::Status CheckWritableDirectory(const std::string& path);
absl::Status SyncDirectory(const std::string& path);  // entries made in it survive a crash
absl::Status Rename(const std::string& from, const std::string& to);
// `to` becomes what `from` was, and `from` is gone. An old directory `to` is exchanged in one step
// where the file system can do that. The directories around both survive a crash (fsync).
absl::Status ReplaceDirectory(const std::string& from, const std::string& to);
// The file or link of that name, not what it leads to; fine if there is none. FAILED_PRECONDITION:
// a directory, which stays.
absl::Status RemoveFile(const std::string& path);
// A file, or a directory with all it holds; fine if there is none.
absl::Status RemoveTree(const std::string& path);

}  // namespace twinstream
