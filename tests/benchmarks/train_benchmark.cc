// Times training steps of one or several variants of a job, block by block in turn, so that what
// else happens on the machine meets all of them alike.
//   train_benchmark --shape=M 'model { residual: PRE_NORM }' 'model { residual: SIAMESE_POST_PRE }'
//   mpirun -np 2 train_benchmark --shape=S '' 'parallel { tensor: 2 sequence_parallel: true }'
//   train_benchmark --shape=M --profile=profile.json 'train { precision: BF16 }'
//   train_benchmark --shape=M --interactive 'train { precision: BF16 }'
//   train_benchmark --shape=1.3B --device=CUDA 'train { precision: BF16 microbatch: 4 global_batch:
//   4 }'
// A variant is a JobSpec in text format, merged over the shape's job. Variants of one rank run on
// rank 0 with all threads while the others sleep; variants of all ranks share the threads.
#include <mpi.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "core/op_profile.h"
#include "core/profiled_device.h"
#include "launch/exit_code.h"
#include "launch/host.h"
#include "launch/job_setup.h"
#include "launch/profile_report.h"
#include "launch/runtime.h"
#include "launch/trainer.h"
#include "models/context.h"
#include "models/flops.h"
#include "nlohmann/json.hpp"
#include "parallel/collectives.h"
#include "parallel/grid_shape.h"
#include "parallel/thread_transport.h"
#include "tests/benchmarks/benchmark_job.h"

ABSL_FLAG(std::string, shape, "M", "tiny, S, M, 124M, 400M or 1.3B");
ABSL_FLAG(std::string, device, "CPU", "CPU, CUDA or AUTO, for all variants");
ABSL_FLAG(int, threads, 0, "compute threads of all ranks together; 0: as many as cores");
ABSL_FLAG(int, rounds, 5, "blocks of steps of each variant");
ABSL_FLAG(int, steps, 2, "steps of a block");
ABSL_FLAG(std::string, json, "", "file that the results are written to as well");
ABSL_FLAG(std::string, profile, "",
          "one variant: file that rank 0's time per operation is written to as JSON; it is printed "
          "too, and steps wait for every operation");
ABSL_FLAG(
    bool, replay, false,
    "with --device=CUDA: records what the second step of a variant without experts, whose "
    "ranks have a card each, gives the cards up to the gradients, and runs that again in each "
    "step");
ABSL_FLAG(bool, interactive, false,
          "one variant: for every line with a number on the standard input, so many steps and a "
          "line of JSON");

namespace twinstream {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostSteps = 1000000, kMostThreads = 4096;

double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

absl::Status CheckRange(absl::string_view what, int value, int least, int most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s = %d: it must be from %d to %d", what, value, least, most));
}

// A long run's results are not to be lost for want of a place.
absl::Status CheckWritable(absl::string_view flag, const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("--%s=%s: %s; name a file that can be written", flag, path, strerror(errno)));
}

absl::Status WriteTo(absl::string_view flag, const std::string& path, const std::string& text) {
  if (path.empty() || std::ofstream(path) << text << std::flush) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("--%s=%s: %s", flag, path, strerror(errno)));
}

absl::Status CheckFlags(size_t variants) {
  absl::Status status = CheckRange("--threads", absl::GetFlag(FLAGS_threads), 0, kMostThreads);
  status.Update(CheckRange("--rounds", absl::GetFlag(FLAGS_rounds), 1, kMostSteps));
  status.Update(CheckRange("--steps", absl::GetFlag(FLAGS_steps), 1, kMostSteps));
  if (absl::GetFlag(FLAGS_replay) && absl::GetFlag(FLAGS_device) != "CUDA") {
    status.Update(absl::InvalidArgumentError(
        absl::StrFormat("--replay is for --device=CUDA, not %s", absl::GetFlag(FLAGS_device))));
  }
  if (absl::GetFlag(FLAGS_interactive) && variants != 1) {
    status.Update(absl::InvalidArgumentError(
        absl::StrFormat("--interactive is for one variant, not for %d", variants)));
  }
  const bool profile = !absl::GetFlag(FLAGS_profile).empty();
  if (profile && variants != 1) {
    status.Update(absl::InvalidArgumentError(
        absl::StrFormat("--profile is for one variant, not for %d", variants)));
  }
  if (profile && absl::GetFlag(FLAGS_replay)) {
    status.Update(absl::InvalidArgumentError("--profile waits for every operation: no --replay"));
  }
  return status;
}

// One way to train, and how long its steps took.
class Variant {
 public:
  // Collective. job: of BenchmarkJob; threads: of all ranks together; profile: of the device, where
  // it is a profiled one.
  Variant(const std::string& text, JobSpec job, Runtime& runtime, Device& device,
          OpProfile& profile, int threads)
      : text_(text),
        runtime_(runtime),
        device_(device),
        profile_(profile),
        hub_(1),
        self_(hub_, 0),
        job_(std::move(job)) {
    const int ranks = GridShape::From(job_.parallel()).ranks();
    alone_ = ranks == 1;
    threads_ = std::max(1, threads / ranks);
    if (!takes_part()) return;
    omp_set_num_threads(threads_);
    Transport& transport = alone_ ? static_cast<Transport&>(self_) : runtime.transport();
    const Replay replay = absl::GetFlag(FLAGS_replay) ? Replay::kOn : Replay::kOff;
    trainer_.emplace(job_, Purpose::kTraining, AccumulationSteps(job_), device, transport,
                     ExecutionOptions{.replay = replay});
    trainer_->Materialize();
    trainer_->InitializeWeights();
    uint32_t state = static_cast<uint32_t>(trainer_->grid().at().data) + 1;
    for (HostArray<int32_t>* ids : {&trainer_->batch().tokens, &trainer_->batch().targets}) {
      for (int32_t& id : *ids) {
        state = state * 1664525 + 1013904223;
        id = static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(job_.model().vocabulary()));
      }
    }
  }

  // Collective. Seconds of each step; none on a rank that takes no part.
  std::vector<double> Run(int steps) {
    std::vector<double> times;
    Together([&] {
      for (int step = 0; step < steps; ++step) {
        const double start = Now();
        profile_.BeginStep();
        loss_ = trainer_->Step(++update_, 1e-4, false).loss;
        profile_.EndStep();
        trainer_->parameters();  // waits for what is on its way
        device_.Synchronize();
        if (!alone_) runtime_.world().Barrier();
        times.push_back(Now() - start);
      }
    });
    return times;
  }

  // Collective. FLOP/s of products of the variant's type on all threads, or cards, at once: rank 0
  // knows.
  double ProductFlops() {
    double flops = 0;
    Together([&] {
      flops =
          MeasurePeakFlops(device_, PeakExtent(device_), ActivationType(job_.train().precision()));
      if (!alone_) flops = AllReduceValue(runtime_.world(), flops, Reduction::kSum);
    });
    return flops;
  }

  const std::string& text() const { return text_; }
  const JobSpec& job() const { return job_; }
  int threads() const { return threads_; }
  double loss() const { return loss_; }
  int64_t replayed_steps() const { return trainer_ ? trainer_->replayed_steps() : 0; }
  MemoryPlan memory() const { return trainer_ ? trainer_->memory() : MemoryPlan(); }
  int64_t tokens() const { return job_.train().global_batch() * job_.model().sequence(); }
  double flops() const {
    return static_cast<double>(tokens()) * TrainingFlopsPerToken(job_.model());
  }

  std::vector<double> seconds, product_flops;  // of the blocks so far

 private:
  bool takes_part() const { return !alone_ || runtime_.rank() == 0; }

  // f on the ranks that take part, from the same moment on. The others sleep meanwhile: the waits
  // of collectives would look for messages too often.
  void Together(absl::FunctionRef<void()> f) {
    runtime_.world().Barrier();
    if (takes_part()) {
      omp_set_num_threads(threads_);
      f();
    }
    MPI_Request met = MPI_REQUEST_NULL;
    MPI_Ibarrier(MPI_COMM_WORLD, &met);
    for (int done = 0; MPI_Test(&met, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0;) {
      usleep(5000);
    }
  }

  std::string text_;
  Runtime& runtime_;
  Device& device_;
  OpProfile& profile_;
  ThreadHub hub_;
  ThreadTransport self_;
  JobSpec job_;
  bool alone_ = true;
  int threads_ = 1;
  std::optional<Trainer> trainer_;
  int64_t update_ = 0;
  double loss_ = 0;
};

Json Description(const Variant& variant) {
  const ModelSpec& model = variant.job().model();
  return {{"shape", absl::GetFlag(FLAGS_shape)},
          {"variant", variant.text()},
          {"scheme", ModelSpec::Residual_Name(model.residual())},
          {"precision", TrainSpec::Precision_Name(variant.job().train().precision())},
          {"device", TrainSpec::Device_Name(variant.job().train().device())},
          {"threads_per_rank", variant.threads()},
          {"hidden", model.hidden()},
          {"layers", model.layers()},
          {"heads", model.heads()},
          {"ffn", model.ffn()},
          {"vocabulary", model.vocabulary()},
          {"tied", model.tied_embeddings()},
          {"sequence", model.sequence()},
          {"batch", variant.job().train().global_batch()},
          {"tokens", variant.tokens()},
          {"activation_bytes", variant.memory().activations},
          {"flops_per_token", TrainingFlopsPerToken(model)}};
}

// Rank 0 reads how many steps to run; 0 at the end of the input. Collective.
absl::StatusOr<int> ReadSteps(Runtime& runtime) {
  int steps = 0;
  absl::Status status;
  if (std::string line; runtime.rank() == 0 && std::getline(std::cin, line)) {
    if (!absl::SimpleAtoi(line, &steps) || !CheckRange("steps", steps, 1, kMostSteps).ok()) {
      status = absl::InvalidArgumentError(absl::StrFormat(
          "standard input: \"%s\" is no number of steps from 1 to %d", line, kMostSteps));
    }
  }
  if (absl::Status s = AgreeOnStatus(runtime.world(), status); !s.ok()) return s;
  return static_cast<int>(AllReduceValue(runtime.world(), steps, Reduction::kSum));
}

absl::Status AnswerLines(Runtime& runtime, Variant& variant) {
  const auto print = [&](Json line) {
    line["peak_rss_bytes"] = PeakResidentBytes();  // before the product's operands
    line["product_gflops"] = variant.ProductFlops() / 1e9;
    if (runtime.rank() == 0) std::cout << line.dump() << std::endl;
  };
  print(Description(variant));
  while (true) {
    const absl::StatusOr<int> steps = ReadSteps(runtime);
    if (!steps.ok() || *steps == 0) return steps.status();
    const std::vector<double> seconds = variant.Run(*steps);
    print({{"seconds", seconds},
           {"loss", variant.loss()},
           {"replayed_steps", variant.replayed_steps()}});
  }
}

// Per block: the ratio of this variant's time to the first one's in the same round.
std::vector<double> Ratios(const Variant& variant, const Variant& first) {
  std::vector<double> ratios;
  for (size_t i = 0; i < variant.seconds.size(); ++i) {
    ratios.push_back(variant.seconds[i] / first.seconds[i]);
  }
  return ratios;
}

Json Print(const Variant& variant, const Variant& first) {
  const double seconds = Quantile(variant.seconds, 0.5);
  std::vector<double> of_ceiling;
  for (size_t i = 0; i < variant.seconds.size(); ++i) {
    of_ceiling.push_back(variant.flops() / variant.seconds[i] / variant.product_flops[i]);
  }
  const std::vector<double> ratios = Ratios(variant, first);
  std::printf("| %s | %.1f (%.1f to %.1f) | %.0f | %.1f %% | %.1f | %.3f (%.3f to %.3f) |\n",
              variant.text().empty() ? "(the shape)" : variant.text().c_str(), 1e3 * seconds,
              1e3 * Quantile(variant.seconds, 0), 1e3 * Quantile(variant.seconds, 1),
              static_cast<double>(variant.tokens()) / seconds, 100 * Quantile(of_ceiling, 0.5),
              static_cast<double>(variant.memory().activations) / (1 << 20), Quantile(ratios, 0.5),
              Quantile(ratios, 0), Quantile(ratios, 1));
  Json json = Description(variant);
  json["seconds"] = variant.seconds;
  json["product_flops"] = variant.product_flops;
  json["replayed_steps"] = variant.replayed_steps();
  return json;
}

absl::Status RunRounds(Runtime& runtime, std::vector<std::unique_ptr<Variant>>& variants) {
  for (const auto& variant : variants) variant->Run(2);  // first steps allocate
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    for (const auto& variant : variants) {
      const double product_flops = variant->ProductFlops();
      const std::vector<double> seconds = variant->Run(absl::GetFlag(FLAGS_steps));
      if (runtime.rank() != 0) continue;
      variant->product_flops.push_back(product_flops);
      variant->seconds.push_back(Quantile(seconds, 0.5));
    }
  }
  if (runtime.rank() != 0) return absl::OkStatus();
  std::printf("%s: %d rounds of %d steps, %.2f GiB peak resident on rank 0\n\n",
              absl::GetFlag(FLAGS_shape).c_str(), absl::GetFlag(FLAGS_rounds),
              absl::GetFlag(FLAGS_steps), static_cast<double>(PeakResidentBytes()) / (1 << 30));
  std::printf(
      "| variant | ms a step (least to most) | tokens/s | of ceiling | activations MiB | time over "
      "the first's |\n|---|---|---|---|---|---|\n");
  Json results = Json::array();
  for (const auto& variant : variants) results.push_back(Print(*variant, *variants[0]));
  return WriteTo("json", absl::GetFlag(FLAGS_json), results.dump(2) + "\n");
}

absl::Status TimeVariants(Runtime& runtime, const std::vector<std::string>& texts) {
  if (absl::Status s = CheckFlags(texts.size()); !s.ok()) return s;
  const std::string shape = absl::GetFlag(FLAGS_shape), device_name = absl::GetFlag(FLAGS_device);
  std::vector<JobSpec> jobs;
  for (const std::string& text : texts) {
    absl::StatusOr<JobSpec> job =
        benchmarks::BenchmarkJob({.shape = shape, .device = device_name}, text, runtime.size());
    if (!job.ok()) return job.status();
    jobs.push_back(*std::move(job));
  }
  const std::string profile_path = absl::GetFlag(FLAGS_profile);
  absl::Status writable;
  if (runtime.rank() == 0) {
    writable = CheckWritable("json", absl::GetFlag(FLAGS_json));
    writable.Update(CheckWritable("profile", profile_path));
  }
  if (absl::Status s = AgreeOnStatus(runtime.world(), writable); !s.ok()) return s;
  int threads = absl::GetFlag(FLAGS_threads);
  if (threads == 0) threads = omp_get_num_procs();
  jobs[0].mutable_runtime()->set_threads(threads);
  OpProfile profile;
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(runtime, jobs[0]);
  if (!device.ok()) return device.status();
  Ceilings ceilings;
  if (!profile_path.empty()) {
    device = MakeProfiledDevice(*std::move(device), profile);
    ceilings = MeasureCeilings(**device);  // before the model takes the memory
  }
  std::vector<std::unique_ptr<Variant>> variants;
  for (size_t i = 0; i < texts.size(); ++i) {
    variants.push_back(
        std::make_unique<Variant>(texts[i], jobs[i], runtime, **device, profile, threads));
  }
  const absl::Status ran = absl::GetFlag(FLAGS_interactive) ? AnswerLines(runtime, *variants[0])
                                                            : RunRounds(runtime, variants);
  if (!ran.ok() || profile_path.empty() || profile.steps() == 0 || runtime.rank() != 0) return ran;
  std::printf("%s\n", ProfileTable(profile, ceilings).c_str());
  return WriteTo("profile", profile_path, ProfileJson(profile, ceilings));
}

int Main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "times training steps; arguments: variants, each a JobSpec in text format merged over the "
      "shape's job");
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  std::vector<std::string> texts(arguments.begin() + 1, arguments.end());
  if (texts.empty()) texts.emplace_back();
  Runtime runtime(argc, argv);
  const absl::Status status = TimeVariants(runtime, texts);
  if (!status.ok() && runtime.rank() == 0) {
    absl::FPrintF(stderr, "train_benchmark: %s\n", status.message());
  }
  return ExitCodeOf(status);
}

}  // namespace
}  // namespace twinstream

// NOLINTNEXTLINE(bugprone-exception-escape): Runtime says of what the job dies
int main(int argc, char** argv) { return twinstream::Main(argc, argv); }
