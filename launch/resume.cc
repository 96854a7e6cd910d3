#include "launch/resume.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "parallel/checkpoint.h"
#include "parallel/checkpoint_directory.h"
#include "parallel/collectives.h"

namespace twinstream {
namespace {

absl::StatusOr<ResumePoint> Choose(const std::string& resume, const std::string& directory,
                                   absl::Span<const std::string> except) {
  if (resume == "none") {
    if (!HasCheckpoints(directory)) return ResumePoint();
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint.directory ", directory,
                     " already holds checkpoints. Go on from them with --resume=auto, or give the "
                     "run another name or directory."));
  }
  if (resume == "auto") {
    NewestWhole newest = FindNewestWhole(directory, except);
    return ResumePoint{std::move(newest.step_directory), std::move(newest.manifest),
                       std::move(newest.warnings)};
  }
  const absl::StatusOr<std::string> step_directory = FindCheckpoint(resume);
  if (!step_directory.ok()) return step_directory.status();
  absl::StatusOr<Manifest> manifest = CheckWhole(*step_directory);
  if (!manifest.ok()) return manifest.status();
  return ResumePoint{*step_directory, *std::move(manifest), {}};
}

}  // namespace

absl::StatusOr<ResumePoint> ChooseResumePoint(Runtime& runtime, const std::string& resume,
                                              const std::string& directory,
                                              absl::Span<const std::string> except) {
  absl::StatusOr<ResumePoint> point = ResumePoint();
  if (runtime.rank() == 0) point = Choose(resume, directory, except);
  if (absl::Status s = AgreeOnStatus(runtime.world(), point.status()); !s.ok()) return s;
  point->step_directory = BroadcastText(runtime.world(), point->step_directory);
  const std::string manifest = BroadcastText(runtime.world(), point->manifest.SerializeAsString());
  Check(point->manifest.ParseFromString(manifest), "the manifest did not survive its broadcast");
  return point;
}

absl::StatusOr<ResumePoint> OpenCheckpoint(Runtime& runtime, const std::string& checkpoint) {
  return ChooseResumePoint(runtime, checkpoint, "", {});
}

absl::Status LoadInto(Trainer& trainer, Communicator& world, Device& device,
                      const std::string& step_directory) {
  ActivityScope doing("loading of a checkpoint");
  const bool training = trainer.purpose() == Purpose::kTraining;
  const std::vector<Piece> needed =
      training ? trainer.optimizer().NeededPieces() : trainer.parameters().ValuePieces();
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
