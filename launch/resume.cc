#include "launch/resume.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "parallel/checkpoint.h"
#include "parallel/checkpoint_directory.h"
#include "parallel/collectives.h"

namespace twinstream {
namespace {

// A step directory, or a directory of them, and whole.
absl::StatusOr<ResumePoint> Open(const std::string& checkpoint) {
  const absl::StatusOr<std::string> step_directory = FindCheckpoint(checkpoint);
  if (!step_directory.ok()) return step_directory.status();
  absl::StatusOr<Manifest> manifest = CheckWhole(*step_directory);
  if (!manifest.ok()) return manifest.status();
  return ResumePoint{*step_directory, *std::move(manifest), {}};
}

absl::StatusOr<ResumePoint> Choose(const std::string& resume, const std::string& directory,
                                   absl::Span<const std::string> except) {
  if (resume == "none") {
    const absl::StatusOr<bool> has_checkpoints = HasCheckpoints(directory);
    if (!has_checkpoints.ok()) return has_checkpoints.status();
    if (!*has_checkpoints) return ResumePoint();
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint.directory ", directory,
                     " already holds checkpoints. Go on from them with --resume=auto, or give the "
                     "run another name or directory."));
  }
  if (resume == "auto") {
    absl::StatusOr<NewestWhole> newest = FindNewestWhole(directory, except);
    if (!newest.ok()) return newest.status();
    if (newest->step_directory.empty() && (!newest->warnings.empty() || !except.empty())) {
      newest->warnings.push_back(absl::StrCat("no checkpoint in ", directory,
                                              " is whole: the run starts afresh, from step 1"));
    }
    return ResumePoint{std::move(newest->step_directory), std::move(newest->manifest),
                       std::move(newest->warnings)};
  }
  return Open(resume);
}

// Rank 0's point on every rank, but for the warnings.
absl::StatusOr<ResumePoint> AgreeOnPoint(Communicator& world, absl::StatusOr<ResumePoint> point) {
  if (absl::Status s = AgreeOnStatus(world, point.status()); !s.ok()) return s;
  point->step_directory = BroadcastText(world, point->step_directory);
  const std::string manifest = BroadcastText(world, point->manifest.SerializeAsString());
  Check(point->manifest.ParseFromString(manifest), "the manifest did not survive its broadcast");
  return point;
}

}  // namespace

absl::StatusOr<ResumePoint> ChooseResumePoint(Runtime& runtime, const std::string& resume,
                                              const std::string& directory,
                                              absl::Span<const std::string> except) {
  return AgreeOnPoint(runtime.world(),
                      runtime.rank() == 0 ? Choose(resume, directory, except) : ResumePoint());
}

absl::Status CheckStillChosen(const std::string& resume, const std::string& directory,
                              absl::Span<const std::string> except, const ResumePoint& point) {
  const absl::StatusOr<ResumePoint> now = Choose(resume, directory, except);
  if (!now.ok()) return now.status();
  if (now->step_directory == point.step_directory) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("meanwhile another run saved ", now->step_directory,
                                             "; start again to go on from there"));
}

absl::StatusOr<ResumePoint> OpenCheckpoint(Runtime& runtime, const std::string& checkpoint) {
  return AgreeOnPoint(runtime.world(), runtime.rank() == 0 ? Open(checkpoint) : ResumePoint());
}

absl::Status LoadInto(Trainer& trainer, Communicator& world, Device& device,
                      const std::string& step_directory) {
  ActivityScope doing("loading of a checkpoint");
  const bool training = trainer.purpose() == Purpose::kTraining;
  const std::vector<Piece> needed =
      training ? trainer.optimizer().NeededPieces() : trainer.WeightPieces();
  // Every tensor of the model and its moments may be stored; a rank wants only its own.
  const auto belongs_to_model = [&](absl::string_view name) {
    for (absl::string_view prefix : {"adam_m.", "adam_v."}) {
      if (absl::StartsWith(name, prefix)) name.remove_prefix(prefix.size());
    }
    return trainer.HasParameter(name);
  };
  return AgreeOnStatus(world, LoadCheckpoint(step_directory, needed, belongs_to_model, device));
}

}  // namespace twinstream
