#include "launch/command_generate.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launch/generation.h"
#include "launch/inference.h"
#include "launch/job_setup.h"
#include "proto/job_rules.h"
#include "proto/job_spec.h"

namespace twinstream {
namespace {

// The checkpoint's job for asking one sequence at a time on this many ranks.
absl::StatusOr<JobSpec> GenerationJob(Runtime& runtime, const JobSpec& saved,
                                      const std::vector<std::string>& overrides) {
  JobSpec job = saved;
  if (runtime.size() == 1) job.clear_parallel();
  job.mutable_parallel()->clear_data();
  job.mutable_parallel()->set_sequence_parallel(false);
  job.mutable_train()->clear_global_batch();
  job.mutable_train()->clear_microbatch();
  if (absl::Status s = ApplyOverrides(overrides, &job); !s.ok()) return s;
  absl::StatusOr<JobSpec> resolved = ResolveForRanks(runtime, job);
  if (!resolved.ok()) return resolved.status();
  const std::vector<std::string> problems = TokenizerProblems(*resolved);
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
  if (resolved->train().microbatch() != 1) {
    return absl::InvalidArgumentError(
        "train.microbatch: generate takes one sequence at a time; leave it at 1");
  }
  return resolved;
}

void PrintByte(int32_t token) {
  std::putchar(token);
  std::fflush(stdout);
}

}  // namespace

absl::Status CommandGenerate(Runtime& runtime, const CommandLine& line) {
  if (line.prompt.empty()) {
    return absl::InvalidArgumentError("--prompt is empty: the model needs something to go on from");
  }
  const absl::StatusOr<ResumePoint> point = OpenCheckpoint(runtime, line.checkpoint);
  if (!point.ok()) return point.status();
  const absl::StatusOr<JobSpec> job = GenerationJob(runtime, point->manifest.job(), line.overrides);
  if (!job.ok()) return job.status();
  const absl::StatusOr<InferenceModel> model = OpenInferenceModel(runtime, *job, *point, 1);
  if (!model.ok()) return model.status();

  std::vector<int32_t> prompt;
  for (char c : line.prompt) prompt.push_back(static_cast<unsigned char>(c));
  const bool prints = runtime.rank() == 0;
  if (prints) std::fputs(line.prompt.c_str(), stdout);
  Generate(*model->trainer, prompt,
           {.tokens = line.tokens,
            .temperature = line.temperature,
            .seed = line.seed,
            .ids = 256},  // a larger vocabulary has ids that are no byte
           [&](int32_t token) {
             if (prints) PrintByte(token);
           });
  if (prints) std::putchar('\n');
  return absl::OkStatus();
}

}  // namespace twinstream
