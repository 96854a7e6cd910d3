#include "launch/command_prepare_data.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "core/file.h"

namespace twinstream {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

absl::StatusOr<int64_t> SizeOfInput(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return absl::NotFoundError(absl::StrCat("--input: ", path, ": ", error.message()));
  }
  if (!std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--input: ", path, " is not a regular file; name the files in it"));
  }
  const int64_t bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error) return absl::InternalError(absl::StrCat("--input: ", path, ": ", error.message()));
  if (bytes == 0) return absl::InvalidArgumentError(absl::StrCat("--input: ", path, " is empty"));
  return bytes;
}

absl::StatusOr<int64_t> SizeOfInputs(const std::vector<std::string>& inputs) {
  int64_t total = 0;
  for (const std::string& path : inputs) {
    const absl::StatusOr<int64_t> bytes = SizeOfInput(path);
    if (!bytes.ok()) return bytes.status();
    total += *bytes;
  }
  return total;
}

// What one run writes; `validation` only where tokens are held out.
struct OutputPaths {
  std::string train, validation, summary;
};

OutputPaths OutputPathsOf(const std::string& prefix) {
  return {prefix + ".bin", prefix + ".validation.bin", prefix + ".json"};
}

// What a file is written as.
std::string TemporaryOf(const std::string& path) { return path + ".tmp"; }

// A file that exists under its name only once Sync and Commit have been called.
class PendingFile {
 public:
  static absl::StatusOr<PendingFile> Create(const std::string& path) {
    absl::StatusOr<OutputFile> file = OutputFile::Create(TemporaryOf(path));
    if (!file.ok()) {
      return absl::Status(file.status().code(),
                          absl::StrCat("--output: ", file.status().message()));
    }
    return PendingFile(path, *std::move(file));
  }
  PendingFile(PendingFile&& other) noexcept
      : path_(std::exchange(other.path_, "")), file_(std::move(other.file_)) {}
  ~PendingFile() {
    if (!path_.empty()) RemoveFile(TemporaryOf(path_)).IgnoreError();
  }

  absl::Status Write(absl::string_view text) { return file_.Write(text); }
  // Bytes become u16 tokens.
  absl::Status WriteTokens(absl::Span<const char> bytes) {
    std::vector<uint16_t> tokens(bytes.size());
    std::transform(bytes.begin(), bytes.end(), tokens.begin(),
                   [](char byte) { return uint16_t{static_cast<uint8_t>(byte)}; });
    return file_.Write(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(tokens.data()),
                                           tokens.size() * sizeof(uint16_t)));
  }

  absl::Status Sync() { return file_.SyncAndClose(); }
  absl::Status Commit() {
    if (absl::Status s = Rename(TemporaryOf(path_), path_); !s.ok()) return s;
    path_.clear();
    return absl::OkStatus();
  }

 private:
  PendingFile(std::string path, OutputFile file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;  // empty once there is nothing to take back
  OutputFile file_;
};

// The first `train_tokens` bytes of the inputs' concatenation go to `train`, the rest to
// `validation`.
absl::Status WriteTokens(const std::vector<std::string>& inputs, int64_t train_tokens,
                         PendingFile& train, std::optional<PendingFile>& validation) {
  std::vector<char> chunk(kChunkBytes);
  int64_t left = train_tokens;
  for (const std::string& path : inputs) {
    std::ifstream input(path, std::ios::binary);
    if (!input) {
      return absl::InvalidArgumentError(
          absl::StrCat("--input: cannot open ", path, ": ", std::strerror(errno)));
    }
    while (input) {
      input.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
      if (input.bad()) {
        return absl::DataLossError(
            absl::StrCat("--input: cannot read ", path, ": ", std::strerror(errno)));
      }
      const int64_t count = input.gcount(), for_train = std::min(left, count);
      const absl::Span<const char> bytes = absl::MakeConstSpan(chunk.data(), count);
      if (absl::Status s = train.WriteTokens(bytes.subspan(0, for_train)); !s.ok()) return s;
      left -= for_train;
      if (for_train == count) continue;
      if (!validation) return absl::AbortedError(absl::StrCat(path, " grew while it was read"));
      if (absl::Status s = validation->WriteTokens(bytes.subspan(for_train)); !s.ok()) return s;
    }
  }
  if (left > 0) return absl::AbortedError("an input shrank while it was read; nothing was written");
  return absl::OkStatus();
}

// Of what is written: renaming over a directory would fail once other files are in place.
absl::Status CheckAreNoDirectories(const std::vector<std::string>& outputs) {
  for (const std::string& output : outputs) {
    std::error_code error;  // what is not there is no directory
    if (!std::filesystem::is_directory(std::filesystem::symlink_status(output, error))) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("--output: ", output,
                     " is a directory; move it away or remove it, or give another --output"));
  }
  return absl::OkStatus();
}

absl::Status CheckOverwritesNoInput(const std::vector<std::string>& inputs,
                                    const std::string& output_prefix) {
  const OutputPaths paths = OutputPathsOf(output_prefix);
  for (const std::string& output : {paths.train, paths.validation, paths.summary}) {
    for (const std::string& file : {output, TemporaryOf(output)}) {
      for (const std::string& input : inputs) {
        std::error_code error;  // an output that is not there is no input
        if (!std::filesystem::equivalent(input, file, error)) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("--input: ", input, " would be overwritten by --output=", output_prefix,
                         ", which may write ", file, "; give another --output"));
      }
    }
  }
  return absl::OkStatus();
}

// A validation file that is not written anew would be of other text than the training file.
absl::Status CheckNoStaleValidation(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path,
                   " is there from an earlier run and would not fit the new files; give "
                   "--validation to replace it, or remove it"));
}

absl::Status CheckArguments(const std::vector<std::string>& inputs,
                            const std::string& output_prefix, const std::string& tokenizer,
                            double validation_fraction) {
  if (inputs.empty()) return absl::InvalidArgumentError("--input names no file");
  if (output_prefix.empty() || output_prefix.back() == '/') {
    return absl::InvalidArgumentError("--output must be a path and the beginning of a file name");
  }
  if (tokenizer != "bytes") {
    return absl::InvalidArgumentError(
        absl::StrCat("--tokenizer=", tokenizer, " is not built yet; the only one so far is bytes"));
  }
  if (!(validation_fraction >= 0 && validation_fraction < 1)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--validation=%.9g must be at least 0 and less than 1", validation_fraction));
  }
  return absl::OkStatus();
}

// All files are begun, and later on the disk, before the first takes its name: what cannot be made
// or finds no room, which some disks say only then, leaves none of them.
absl::Status WriteFiles(const std::vector<std::string>& inputs, int64_t train_tokens,
                        int64_t validation_tokens, const std::string& output_prefix) {
  const OutputPaths paths = OutputPathsOf(output_prefix);
  std::vector<std::string> outputs = {paths.train, paths.summary};
  if (validation_tokens > 0) {
    outputs.push_back(paths.validation);
  } else if (absl::Status s = CheckNoStaleValidation(paths.validation); !s.ok()) {
    return s;
  }
  if (absl::Status s = CheckAreNoDirectories(outputs); !s.ok()) return s;

  const std::string parent = std::filesystem::path(output_prefix).parent_path().string();
  const std::string directory = parent.empty() ? "." : parent;
  if (absl::Status s = MakeDirectories(directory); !s.ok()) return s;
  absl::StatusOr<PendingFile> train = PendingFile::Create(paths.train);
  if (!train.ok()) return train.status();
  absl::StatusOr<PendingFile> summary = PendingFile::Create(paths.summary);
  if (!summary.ok()) return summary.status();
  std::optional<PendingFile> validation;
  if (validation_tokens > 0) {
    absl::StatusOr<PendingFile> created = PendingFile::Create(paths.validation);
    if (!created.ok()) return created.status();
    validation.emplace(*std::move(created));
  }
  if (absl::Status s = WriteTokens(inputs, train_tokens, *train, validation); !s.ok()) return s;
  const std::string text = absl::StrFormat(
      "{\"tokens\": %d, \"vocabulary\": 256, \"tokenizer\": \"bytes\"}\n", train_tokens);
  if (absl::Status s = summary->Write(text); !s.ok()) return s;
  std::vector<PendingFile*> files = {&*train, &*summary};
  if (validation) files.insert(files.begin(), &*validation);
  for (PendingFile* file : files) {
    if (absl::Status s = file->Sync(); !s.ok()) return s;
  }
  for (PendingFile* file : files) {
    if (absl::Status s = file->Commit(); !s.ok()) return s;
  }
  if (absl::Status s = SyncDirectory(directory); !s.ok()) return s;
  absl::PrintF(
      "%s: %d tokens%s (u16, vocabulary 256)\n", paths.train, train_tokens,
      validation ? absl::StrFormat("; %s: %d tokens", paths.validation, validation_tokens) : "");
  return absl::OkStatus();
}

}  // namespace

absl::Status CommandPrepareData(const std::vector<std::string>& inputs,
                                const std::string& output_prefix, const std::string& tokenizer,
                                double validation_fraction) {
  if (absl::Status s = CheckArguments(inputs, output_prefix, tokenizer, validation_fraction);
      !s.ok()) {
    return s;
  }
  const absl::StatusOr<int64_t> size = SizeOfInputs(inputs);
  if (!size.ok()) return size.status();
  if (absl::Status s = CheckOverwritesNoInput(inputs, output_prefix); !s.ok()) return s;
  const int64_t total = *size;
  const int64_t held_out = std::llround(static_cast<double>(total) * validation_fraction);
  if ((validation_fraction > 0 && held_out == 0) || held_out == total) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--validation=%.9g of %d tokens leaves one of the two files empty",
                        validation_fraction, total));
  }
  return WriteFiles(inputs, total - held_out, held_out, output_prefix);
}

}  // namespace twinstream
