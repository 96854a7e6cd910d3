// Trains one job with and without overlap in turn, under mpirun, and prints the time of a step for
// both. Exits with 1 when the losses differ in some bit.
// Usage: overlap_program BLOCKS [OVERRIDE]   OVERRIDE: a JobSpec in text format, merged over the
// job
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/strings/str_join.h"
#include "core/check.h"
#include "google/protobuf/text_format.h"
#include "launch/runtime.h"
#include "launch/trainer.h"
#include "parallel/collectives.h"
#include "proto/job_rules.h"
#include "proto/job_spec.h"

namespace twinstream {
namespace {

constexpr int kStepsOfABlock = 4;

constexpr const char* kJob = R"(
  name: "overlap"
  model { residual: SIAMESE_HYBRID_PRE layers: 8 hidden: 384 heads: 6 ffn: 1024
          vocabulary: 2048 sequence: 128 }
  data { train { path: "none" } }
  train { steps: 1000 global_batch: 16 microbatch: 4 }
)";

JobSpec JobFrom(const char* override_text, int ranks) {
  JobSpec job;
  google::protobuf::TextFormat::Parser parser;
  Check(parser.ParseFromString(kJob, &job) && parser.MergeFromString(override_text, &job),
        "not a job: %s", override_text);
  job = ResolveJobSpec(job, ranks);
  const std::vector<std::string> problems = JobProblems(job, ranks);
  Check(problems.empty(), "%s", absl::StrJoin(problems, "; "));
  return job;
}

// One way of training, and how long its steps took.
class Contestant {
 public:
  Contestant(const JobSpec& job, Runtime& runtime, Device& device, Overlap overlap)
      : runtime_(runtime),
        trainer_(job, Purpose::kTraining, AccumulationSteps(job), device, runtime.transport(),
                 {.overlap = overlap}) {
    trainer_.Materialize();
    trainer_.InitializeWeights();
    uint32_t state = static_cast<uint32_t>(trainer_.grid().at().data) + 1;
    for (HostArray<int32_t>* ids : {&trainer_.batch().tokens, &trainer_.batch().targets}) {
      for (int32_t& id : *ids) {
        state = state * 1664525 + 1013904223;
        id = static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(job.model().vocabulary()));
      }
    }
  }

  void RunBlock() {
    runtime_.world().Barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int step = 0; step < kStepsOfABlock; ++step) {
      losses_.push_back(trainer_.Step(++update_, 1e-4, false).loss);
    }
    trainer_.parameters();  // waits for what is on its way
    runtime_.world().Barrier();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    seconds_.push_back(seconds.count() / kStepsOfABlock);
  }
  void Forget() { seconds_.clear(); }

  // Of the sorted times of a step.
  double Quantile(double share) const {
    std::vector<double> sorted = seconds_;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
  }
  const std::vector<double>& losses() const { return losses_; }

 private:
  Runtime& runtime_;
  Trainer trainer_;
  int64_t update_ = 0;
  std::vector<double> losses_, seconds_;
};

void Print(const char* name, const Contestant& contestant) {
  std::printf("%s: median %.1f ms a step (quartiles %.1f to %.1f)\n", name,
              1e3 * contestant.Quantile(0.5), 1e3 * contestant.Quantile(0.25),
              1e3 * contestant.Quantile(0.75));
}

int Main(int argc, char** argv) {
  Runtime runtime(argc, argv);
  Check(argc == 2 || argc == 3, "usage: overlap_program BLOCKS [OVERRIDE]");
  const int blocks = std::atoi(argv[1]);
  const JobSpec job = JobFrom(argc == 3 ? argv[2] : "", runtime.size());
  const std::unique_ptr<Device> device = *MakeDevice("cpu");
  Contestant off(job, runtime, *device, Overlap::kOff), on(job, runtime, *device, Overlap::kOn);
  for (Contestant* contestant : {&off, &on}) {  // first steps allocate
    contestant->RunBlock();
    contestant->Forget();
  }
  for (int block = 0; block < blocks; ++block) {
    off.RunBlock();
    on.RunBlock();
  }
  const bool same = off.losses() == on.losses();
  if (runtime.rank() == 0) {
    std::printf("%s, %d blocks of %d steps each\n",
                GridShape::From(job.parallel()).ToString().c_str(), blocks, kStepsOfABlock);
    Print("overlap off", off);
    Print("overlap on", on);
    std::printf("saved: %.1f %%; losses %s\n", 100 * (1 - on.Quantile(0.5) / off.Quantile(0.5)),
                same ? "equal to the last bit" : "DIFFER");
  }
  return same ? 0 : 1;
}

}  // namespace
}  // namespace twinstream

int main(int argc, char** argv) { return twinstream::Main(argc, argv); }
