#include "tests/benchmarks/benchmark_job.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "parallel/grid_shape.h"
#include "proto/job_rules.h"
#include "proto/job_spec.h"
#include "proto/job_text.h"
#include "proto/problems.h"
#include "tests/benchmarks/model_shapes.h"

namespace twinstream::benchmarks {
namespace {

constexpr const char* kJob = R"(
  name: "benchmark" data { train { path: "none" } } optimizer { schedule: CONSTANT peak_lr: 1e-4 }
  model { residual: SIAMESE_HYBRID_PRE } train { steps: 1000000 })";

// The variant merged over the shape's job and this file's.
absl::StatusOr<JobSpec> MergedJob(const BenchmarkModel& model, const std::string& variant) {
  const absl::Span<const ModelShape> shapes = ModelShapes();
  const auto* const shape =
      std::find_if(shapes.begin(), shapes.end(),
                   [&](const ModelShape& candidate) { return candidate.name == model.shape; });
  if (shape == shapes.end()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--shape=%s is none of %s", model.shape,
                        absl::StrJoin(shapes, ", ", [](std::string* out, const ModelShape& known) {
                          absl::StrAppend(out, known.name);
                        })));
  }
  JobSpec job;
  const std::string device = absl::StrCat("train { device: ", model.device, " }");
  for (const std::string& text : {std::string(kJob), std::string(shape->job), variant, device}) {
    const absl::StatusOr<JobSpec> part = ParseJobText(text, absl::StrCat("'", text, "'"));
    if (!part.ok()) return part.status();
    if (job.train().has_device()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("'%s' names a train.device; name one for all with --device", variant));
    }
    job.MergeFrom(*part);
  }
  return job;
}

}  // namespace

absl::StatusOr<JobSpec> BenchmarkJob(const BenchmarkModel& model, const std::string& variant,
                                     int all_ranks) {
  const absl::StatusOr<JobSpec> job = MergedJob(model, variant);
  if (!job.ok()) return job;
  const ParallelSpec& parallel = job->parallel();
  const bool alone = Product({parallel.tensor(), parallel.pipeline(), parallel.context(),
                              std::max(1, parallel.data())}) == 1;
  const int ranks = alone ? 1 : all_ranks;
  const std::vector<std::string> problems = JobProblems(*job, ranks);
  if (problems.empty()) return ResolveJobSpec(*job, ranks);
  return absl::InvalidArgumentError(absl::StrFormat("'%s' has %d %s:\n%s", variant, problems.size(),
                                                    problems.size() == 1 ? "mistake" : "mistakes",
                                                    absl::StrJoin(problems, "\n")));
}

}  // namespace twinstream::benchmarks
