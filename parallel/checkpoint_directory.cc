#include "parallel/checkpoint_directory.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/file.h"
#include "parallel/checkpoint_reader.h"

namespace twinstream {
namespace {

// The step of a name like step_000000008, or -1.
int64_t StepOf(absl::string_view name) {
  int64_t step = -1;
  const bool is_step = absl::StartsWith(name, "step_") && absl::SimpleAtoi(name.substr(5), &step) &&
                       name == StepName(step);
  return is_step ? step : -1;
}

// Names of all entries; none if the directory cannot be read.
std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

// Steps of all step directories, highest first.
std::vector<int64_t> StepsIn(const std::string& directory) {
  std::vector<int64_t> steps;
  for (const std::string& name : NamesIn(directory)) {
    if (StepOf(name) >= 0) steps.push_back(StepOf(name));
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

// The step that `latest` names, or -1 if it names none.
int64_t LatestStep(const std::string& directory) {
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(directory, "/latest"));
  return text.ok() ? StepOf(absl::StripAsciiWhitespace(*text)) : -1;
}

}  // namespace

std::string StepName(int64_t step) { return absl::StrFormat("step_%09d", step); }

absl::StatusOr<std::string> FindCheckpoint(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(absl::StrCat(path, "/manifest.textproto"), error)) return path;
  if (!std::filesystem::is_directory(path, error)) {
    return absl::NotFoundError(absl::StrCat("there is no checkpoint directory ", path));
  }
  const int64_t step = LatestStep(path);
  if (step < 0) {
    return absl::NotFoundError(absl::StrCat(
        path,
        " is no checkpoint: it has neither manifest.textproto nor a file `latest` that names "
        "a step directory; give a step directory (step_...)"));
  }
  const std::string step_directory = absl::StrCat(path, "/", StepName(step));
  if (!std::filesystem::is_directory(step_directory, error)) {
    return absl::NotFoundError(
        absl::StrCat(path, "/latest names ", StepName(step),
                     ", which is not there; give a step directory (step_...)"));
  }
  return step_directory;
}

absl::StatusOr<Manifest> CheckWhole(const std::string& step_directory) {
  absl::StatusOr<Manifest> manifest = ReadManifest(step_directory);
  if (!manifest.ok()) return manifest;
  for (const ShardFile& file : manifest->file()) {
    const std::string path = absl::StrCat(step_directory, "/", file.name());
    std::error_code error;
    const std::uintmax_t bytes = std::filesystem::file_size(path, error);
    if (error) return absl::DataLossError(absl::StrCat(path, ": ", error.message()));
    if (bytes != static_cast<std::uintmax_t>(file.bytes())) {
      return absl::DataLossError(
          absl::StrCat(path, " has ", bytes, " bytes instead of ", file.bytes()));
    }
  }
  return manifest;
}

absl::StatusOr<NewestWhole> FindNewestWhole(const std::string& directory,
                                            absl::Span<const std::string> except) {
  std::vector<int64_t> steps = StepsIn(directory);
  if (const int64_t latest = LatestStep(directory); latest >= 0) {
    std::stable_partition(steps.begin(), steps.end(), [=](int64_t step) { return step <= latest; });
  }
  NewestWhole found;
  for (int64_t step : steps) {
    const std::string step_directory = absl::StrCat(directory, "/", StepName(step));
    if (std::find(except.begin(), except.end(), step_directory) != except.end()) continue;
    absl::StatusOr<Manifest> manifest = CheckWhole(step_directory);
    if (manifest.ok()) {
      found.step_directory = step_directory;
      found.manifest = *std::move(manifest);
      return found;
    }
    if (!absl::IsDataLoss(manifest.status()) && !absl::IsNotFound(manifest.status())) {
      return absl::Status(
          manifest.status().code(),
          absl::StrCat("checkpoint ", step_directory,
                       " may be whole but cannot be read: ", manifest.status().message(),
                       "; go on with the program that wrote it, name an older one (--resume=DIR), "
                       "or give the run another checkpoint.directory"));
    }
    found.warnings.push_back(
        absl::StrCat("checkpoint ", step_directory,
                     " is not whole and is passed over: ", manifest.status().message()));
  }
  return found;
}

absl::Status RemoveLeftovers(const std::string& directory) {
  for (const std::string& name : NamesIn(directory)) {
    if (!absl::StartsWith(name, ".tmp_step_")) continue;
    if (absl::Status s = RemoveTree(absl::StrCat(directory, "/", name)); !s.ok()) return s;
  }
  return absl::OkStatus();
}

bool HasCheckpoints(const std::string& directory) { return !StepsIn(directory).empty(); }

absl::Status PruneCheckpoints(const std::string& directory, int64_t keep, int64_t keep_every) {
  if (keep == 0) return absl::OkStatus();
  const int64_t latest = LatestStep(directory);
  int64_t kept = 0;
  for (int64_t step : StepsIn(directory)) {
    const std::string step_directory = absl::StrCat(directory, "/", StepName(step));
    if (latest >= 0 && step > latest) continue;
    if (!CheckWhole(step_directory).ok()) continue;
    if (kept++ < keep || step == latest) continue;
    if (keep_every > 0 && step % keep_every == 0) continue;
    // Renamed first: a removal cut short leaves no half checkpoint.
    const std::string doomed = absl::StrCat(directory, "/.tmp_", StepName(step));
    if (absl::Status s = RemoveTree(doomed); !s.ok()) return s;
    if (absl::Status s = Rename(step_directory, doomed); !s.ok()) return s;
    if (absl::Status s = RemoveTree(doomed); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace twinstream
