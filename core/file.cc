#include "core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace twinstream {
namespace {

absl::Status Failure(int error, absl::string_view verb, absl::string_view path) {
  const absl::Status status = absl::ErrnoToStatus(error, absl::StrCat("cannot ", verb, " ", path));
  // Links in a circle, for which Abseil knows no code; and a file that may not grow, as on a full
  // disk.
  if (error == ELOOP) return absl::InvalidArgumentError(status.message());
  return error == EFBIG ? absl::ResourceExhaustedError(status.message()) : status;
}

absl::Status DirectoryInTheWay(absl::string_view path) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": a directory of that name is in the way; move it away or remove it"));
}

// Where ReplaceFile writes first.
std::string TemporaryName(const std::string& path) { return path + ".tmp"; }

std::string ParentOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// A descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  int value() const { return value_; }

 private:
  int value_;
};

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // Not to wait for a pipe's writer: it is refused below.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.value() < 0) return Failure(errno, "open", path);
  struct stat status;
  if (fstat(file.value(), &status) != 0) return Failure(errno, "inspect", path);
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  const size_t size = static_cast<size_t>(status.st_size);
  if (size == 0) return MappedFile(path, {});  // mmap refuses empty ranges
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value(), 0);
  if (data == MAP_FAILED) return Failure(errno, "map", path);
  return MappedFile(path, {static_cast<const std::byte*>(data), size});
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

absl::StatusOr<OutputFile> OutputFile::Create(const std::string& path) {
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  int descriptor = open(path.c_str(), flags, 0666);
  if (descriptor < 0 && errno == EEXIST) {
    // Not written through: a link's target and a second name's file are not ours, a pipe never
    // ends.
    if (absl::Status s = RemoveFile(path); !s.ok()) return s;
    descriptor = open(path.c_str(), flags, 0666);
  }
  if (descriptor < 0) return Failure(errno, "create", path);
  return OutputFile(path, descriptor);
}

absl::StatusOr<OutputFile> OutputFile::Append(const std::string& path) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor < 0) return Failure(errno, "write", path);
  return OutputFile(path, descriptor);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_written_(other.bytes_written_) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_written_, other.bytes_written_);
  return *this;
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status OutputFile::Write(absl::Span<const std::byte> bytes) {
  struct stat status;
  if (fstat(descriptor_, &status) != 0) return Failure(errno, "inspect", path_);
  // Some file systems count no links: only a name that is gone, or another file's, is a sign.
  struct stat named;
  if (status.st_nlink == 0 && (stat(path_.c_str(), &named) != 0 || named.st_ino != status.st_ino)) {
    return absl::DataLossError(absl::StrCat(path_, " was removed while it was being written"));
  }
  while (!bytes.empty()) {
    const ssize_t count = write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failure(errno, "write", path_);
    bytes_written_ += count;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Write(absl::string_view text) {
  return Write(
      absl::Span<const std::byte>(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

absl::Status OutputFile::SyncAndClose() {
  if (fsync(descriptor_) != 0) return Failure(errno, "bring to disk", path_);
  if (close(std::exchange(descriptor_, -1)) != 0) return Failure(errno, "close", path_);
  return absl::OkStatus();
}

absl::StatusOr<FileLock> FileLock::Take(const std::string& path, std::chrono::seconds patience) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) return Failure(errno, "open", path);
  FileLock lock(descriptor);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP) break;  // no locks here
    if (errno != EWOULDBLOCK && errno != EINTR) return Failure(errno, "lock", path);
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::UnavailableError(absl::StrCat("another process holds ", path));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return lock;
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  return std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
}

absl::Status ReplaceFile(const std::string& path, absl::string_view text) {
  const std::string temporary = TemporaryName(path);
  absl::StatusOr<OutputFile> file = OutputFile::Create(temporary);
  if (!file.ok()) return file.status();
  absl::Status status = file->Write(text);
  if (status.ok()) status = file->SyncAndClose();
  if (status.ok()) status = Rename(temporary, path);
  if (status.ok()) return SyncDirectory(ParentOf(path));
  RemoveFile(temporary).IgnoreError();
  return status;
}

absl::Status CheckReplaceable(const std::string& path) {
  for (const std::string& name : {path, TemporaryName(path)}) {
    struct stat status;
    if (lstat(name.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
      return DirectoryInTheWay(name);
    }
  }
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? Failure(error.value(), "make the directory", path) : absl::OkStatus();
}

absl::Status CheckWritableDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::path nearest = std::filesystem::absolute(path, error);  // that exists
  for (const std::filesystem::path& part : nearest) {
    if (part.native().size() > NAME_MAX) return Failure(ENAMETOOLONG, "make", path);
  }
  if (nearest.native().size() >= PATH_MAX) return Failure(ENAMETOOLONG, "make", path);
  while (!std::filesystem::exists(std::filesystem::symlink_status(nearest, error)) &&
         nearest != nearest.root_path()) {
    nearest = nearest.parent_path();
  }
  if (!std::filesystem::is_directory(nearest, error)) {
    return Failure(ENOTDIR, "write below", nearest.string());
  }
  return access(nearest.c_str(), W_OK | X_OK) == 0
             ? absl::OkStatus()
             : Failure(errno, "write below", nearest.string());
}

absl::Status SyncDirectory(const std::string& path) {
  const Descriptor directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.value() < 0) return Failure(errno, "open the directory", path);
  if (fsync(directory.value()) != 0) return Failure(errno, "bring to disk", path);
  return absl::OkStatus();
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) {
    return Failure(errno, absl::StrCat("rename ", from, " to"), to);
  }
  return absl::OkStatus();
}

absl::Status ReplaceDirectory(const std::string& from, const std::string& to) {
  const bool exchanged =
      renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0;
  if (!exchanged) {  // there is no old one, or the file system cannot exchange
    if (absl::Status s = RemoveTree(to); !s.ok()) return s;
    if (absl::Status s = Rename(from, to); !s.ok()) return s;
  }
  if (absl::Status s = SyncDirectory(ParentOf(to)); !s.ok()) return s;
  return exchanged ? RemoveTree(from) : absl::OkStatus();
}

absl::Status RemoveFile(const std::string& path) {
  if (unlink(path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  // Looked up here: a read-only file system refuses before it looks whether there is a file.
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) {
    const bool none = errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG;
    return none ? absl::OkStatus() : Failure(error, "remove", path);
  }
  return S_ISDIR(status.st_mode) ? DirectoryInTheWay(path) : Failure(error, "remove", path);
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? Failure(error.value(), "remove", path) : absl::OkStatus();
}

}  // namespace twinstream
