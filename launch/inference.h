// A trained model ready to be asked, on any layout: what evaluate and generate share.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/device.h"
#include "launch/resume.h"
#include "launch/runtime.h"
#include "launch/trainer.h"
#include "proto/job.pb.h"

namespace twinstream {

struct InferenceModel {
  std::unique_ptr<JobSpec> job;  // what the trainer refers to
  std::unique_ptr<Device> device;
  std::unique_ptr<Trainer> trainer;
};

// job: resolved and without problems for the runtime's ranks. FailedPrecondition when the
// checkpoint's model is another one, naming the fields. Collective; the same status on every rank.
absl::StatusOr<InferenceModel> OpenInferenceModel(Runtime& runtime, const JobSpec& job,
                                                  const ResumePoint& point, int64_t micro_batches);

}  // namespace twinstream
