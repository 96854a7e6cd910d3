#include "launch/command_evaluate.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "launch/evaluation.h"
#include "launch/inference.h"
#include "launch/job_setup.h"

namespace twinstream {

absl::Status CommandEvaluate(Runtime& runtime, const CommandLine& line) {
  absl::StatusOr<JobSpec> asked = AgreeOnJob(runtime, line.positional[0], line.overrides);
  if (!asked.ok()) return asked.status();
  const absl::StatusOr<JobSpec> job = ResolveForRanks(runtime, *asked);
  if (!job.ok()) return job.status();
  if (job->data().validation_size() == 0) {
    return absl::InvalidArgumentError("data.validation is empty: name the files to evaluate on");
  }
  const absl::StatusOr<TokenDataset> validation = OpenData(runtime, *job, DataPart::kValidation);
  if (!validation.ok()) return validation.status();
  const absl::StatusOr<ResumePoint> point = OpenCheckpoint(runtime, line.checkpoint);
  if (!point.ok()) return point.status();
  const absl::StatusOr<InferenceModel> model =
      OpenInferenceModel(runtime, *job, *point, AccumulationSteps(*job));
  if (!model.ok()) return model.status();
  const Evaluation result =
      Evaluate(*model->trainer, *validation, AllBatches(*model->trainer, *validation));
  if (runtime.rank() == 0) {
    absl::PrintF("validation_loss=%.9g validation_perplexity=%.9g tokens=%d\n", result.loss,
                 std::exp(result.loss), result.tokens);
  }
  return absl::OkStatus();
}

}  // namespace twinstream
