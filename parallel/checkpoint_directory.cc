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

// All entries; none if there is no such directory.
absl::StatusOr<std::vector<std::filesystem::directory_entry>> EntriesOf(
    const std::string& directory) {
  std::vector<std::filesystem::directory_entry> entries;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    entries.push_back(*entry);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot list the checkpoints in ", directory, ": ", error.message(),
                     "; name another directory (checkpoint.directory)"));
  }
  return entries;
}

// Steps of all step directories, highest first.
absl::StatusOr<std::vector<int64_t>> StepsIn(const std::string& directory) {
  const auto entries = EntriesOf(directory);
  if (!entries.ok()) return entries.status();
  std::vector<int64_t> steps;
  for (const std::filesystem::directory_entry& entry : *entries) {
    std::error_code error;
    const int64_t step = StepOf(entry.path().filename().string());
    if (step >= 0 && entry.is_directory(error)) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

// The step that `latest` names, or -1 if there is none or it names none.
absl::StatusOr<int64_t> LatestStep(const std::string& directory) {
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(directory, "/latest"));
  if (absl::IsNotFound(text.status())) return -1;
  if (!text.ok()) return text.status();
  return StepOf(absl::StripAsciiWhitespace(*text));
}

}  // namespace

std::string StepName(int64_t step) { return absl::StrFormat("step_%09d", step); }

absl::StatusOr<std::string> FindCheckpoint(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(absl::StrCat(path, "/manifest.textproto"), error)) return path;
  if (!std::filesystem::is_directory(path, error)) {
    return absl::NotFoundError(absl::StrCat("there is no checkpoint directory ", path));
  }
  const absl::StatusOr<int64_t> step = LatestStep(path);
  if (!step.ok()) return step.status();
  if (*step < 0) {
    // A step directory without its manifest is a damaged one.
    const std::filesystem::path name = std::filesystem::path(path + "/").parent_path().filename();
    if (StepOf(name.string()) >= 0) return path;
    return absl::NotFoundError(absl::StrCat(
        path,
        " is no checkpoint: it has neither manifest.textproto nor a file `latest` that names "
        "a step directory; give a step directory (step_...)"));
  }
  const std::string step_directory = absl::StrCat(path, "/", StepName(*step));
  if (!std::filesystem::is_directory(step_directory, error)) {
    return absl::NotFoundError(
        absl::StrCat(path, "/latest names ", StepName(*step),
                     ", which is not there; give a step directory (step_...)"));
  }
  return step_directory;
}

absl::StatusOr<Manifest> CheckWhole(const std::string& step_directory) {
  absl::StatusOr<Manifest> manifest = ReadManifest(step_directory);
  if (!manifest.ok()) return manifest;
  for (const ShardFile& file : manifest->file()) {
    if (absl::Status s = OpenShard(step_directory, file).status(); !s.ok()) return s;
  }
  return manifest;
}

absl::StatusOr<NewestWhole> FindNewestWhole(const std::string& directory,
                                            absl::Span<const std::string> except) {
  absl::StatusOr<std::vector<int64_t>> steps = StepsIn(directory);
  if (!steps.ok()) return steps.status();
  const absl::StatusOr<int64_t> latest = LatestStep(directory);
  if (!latest.ok()) return latest.status();
  if (*latest >= 0) {
    std::stable_partition(steps->begin(), steps->end(),
                          [&](int64_t step) { return step <= *latest; });
  }
  NewestWhole found;
  for (int64_t step : *steps) {
    const std::string step_directory = absl::StrCat(directory, "/", StepName(step));
    if (std::find(except.begin(), except.end(), step_directory) != except.end()) continue;
    absl::StatusOr<Manifest> manifest = CheckWhole(step_directory);
    if (manifest.ok()) {
      found.step_directory = step_directory;
      found.manifest = *std::move(manifest);
      return found;
    }
    if (!absl::IsDataLoss(manifest.status())) {
      return absl::Status(
          manifest.status().code(),
          absl::StrCat("checkpoint ", step_directory,
                       " may be whole but cannot be read: ", manifest.status().message(),
                       "; make it readable or, if another version wrote it, go on with that; or "
                       "name an older one (--resume=DIR)"));
    }
    found.warnings.push_back(
        absl::StrCat("checkpoint ", step_directory,
                     " is not whole and is passed over: ", manifest.status().message()));
  }
  return found;
}

absl::Status RemoveLeftovers(const std::string& directory) {
  const auto entries = EntriesOf(directory);
  if (!entries.ok()) return entries.status();
  for (const std::filesystem::directory_entry& entry : *entries) {
    const std::string name = entry.path().filename().string();
    if (!absl::StartsWith(name, ".tmp_step_")) continue;
    if (absl::Status s = RemoveTree(absl::StrCat(directory, "/", name)); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> HasCheckpoints(const std::string& directory) {
  const absl::StatusOr<std::vector<int64_t>> steps = StepsIn(directory);
  if (!steps.ok()) return steps.status();
  return !steps->empty();
}

absl::Status PruneCheckpoints(const std::string& directory, int64_t keep, int64_t keep_every) {
  if (keep == 0) return absl::OkStatus();
  const absl::StatusOr<int64_t> latest = LatestStep(directory);
  if (!latest.ok()) return latest.status();
  const absl::StatusOr<std::vector<int64_t>> steps = StepsIn(directory);
  if (!steps.ok()) return steps.status();
  int64_t kept = 0;
  for (int64_t step : *steps) {
    const std::string step_directory = absl::StrCat(directory, "/", StepName(step));
    if (*latest >= 0 && step > *latest) continue;
    if (!CheckWhole(step_directory).ok()) continue;
    if (kept++ < keep || step == *latest) continue;
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
