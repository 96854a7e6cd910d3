#include "launch/inference.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launch/job_setup.h"
#include "proto/job_resume.h"

namespace twinstream {
namespace {

absl::Status CheckSameModel(const JobSpec& saved, const JobSpec& now) {
  JobSpec saved_model, model;
  *saved_model.mutable_model() = saved.model();
  *model.mutable_model() = now.model();
  const std::vector<std::string> differences = JobDifferences(saved_model, model);
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the checkpoint's model is not the job's: ", absl::StrJoin(differences, "; "),
                   ". Give the job that the checkpoint was trained with."));
}

}  // namespace

absl::StatusOr<InferenceModel> OpenInferenceModel(Runtime& runtime, const JobSpec& job,
                                                  const ResumePoint& point, int64_t micro_batches) {
  if (absl::Status s = CheckSameModel(point.manifest.job(), job); !s.ok()) return s;
  NameRank(runtime, job);

  InferenceModel model;
  model.job = std::make_unique<JobSpec>(job);
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(runtime, job);
  if (!device.ok()) return device.status();
  model.device = *std::move(device);
  model.trainer = std::make_unique<Trainer>(*model.job, Purpose::kInference, micro_batches,
                                            *model.device, runtime.transport());
  absl::Status room =
      CheckMemory(runtime.world(), runtime.hostname(), *model.device, model.trainer->memory());
  if (!room.ok()) return room;
  model.trainer->Materialize();
  if (absl::Status s =
          LoadInto(*model.trainer, runtime.world(), *model.device, point.step_directory);
      !s.ok())
    return s;
  return model;
}

}  // namespace twinstream
