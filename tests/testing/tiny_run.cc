#include "tests/testing/tiny_run.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <mutex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launch/lr_schedule.h"
#include "launch/resume.h"
#include "launch/trainer.h"
#include "parallel/checkpoint.h"
#include "proto/job_rules.h"
#include "proto/job_spec.h"
#include "proto/layout_rules.h"
#include "tests/testing/run_ranks.h"

namespace twinstream::testing {
namespace {

constexpr int64_t kWindows = 47;  // prime: no batch divides it, epochs end within batches

void Save(const JobSpec& job, const RunSpan& span, const Trainer& trainer, Device& device) {
  const SaveRequest request = {.step = span.last,
                               .next_sample = span.last * job.train().global_batch(),
                               .job = job,
                               .layout = trainer.grid().shape().ToString(),
                               .program = "test"};
  const absl::Status saved = SaveCheckpoint(span.save, request, trainer.optimizer().OwnedPieces(),
                                            device, trainer.grid().world());
  Check(saved.ok(), "%s", saved.ToString());
}

// What a rank holds, by box.
using Boxes = std::map<std::string, std::vector<std::byte>>;

// Compares a rank's boxes with those of the ranks before it, and adds them.
void CompareReplicas(const Trainer& trainer, Device& device, Boxes* boxes, RunRecord* record) {
  for (const Piece& piece : trainer.parameters().ValuePieces()) {
    std::vector<std::byte> values(static_cast<size_t>(piece.data.bytes()));
    device.CopyOut(values.data(), piece.data);
    const auto [found, is_new] =
        boxes->try_emplace(absl::StrCat(piece.name, piece.box.ToString()), values);
    record->replicas += is_new ? 0 : 1;
    record->unequal_replicas += found->second == values ? 0 : 1;
  }
}

// One rank's part of RunSteps.
class RankRun {
 public:
  RankRun(const JobSpec& job, Transport& transport, const RunSpan& span)
      : job_(job),
        device_(span.make_device(transport.rank())),
        trainer_(job, Purpose::kTraining, AccumulationSteps(job), *device_, transport,
                 span.execution) {
    trainer_.Materialize();
  }

  void Begin(const std::string& checkpoint) {
    if (checkpoint.empty()) return trainer_.InitializeWeights();
    const absl::Status loaded = LoadInto(trainer_, trainer_.grid().world(), *device_, checkpoint);
    Check(loaded.ok(), "%s", loaded.ToString());
  }

  StepResult Step(const TokenDataset& dataset, int64_t step) {
    HostBatch& batch = trainer_.batch();
    const absl::Status loaded =
        BatchLoader(dataset, trainer_.batch_shape())
            .Load((step - 1) * job_.train().global_batch(), absl::MakeSpan(batch.tokens),
                  absl::MakeSpan(batch.targets));
    Check(loaded.ok(), "%s", loaded.ToString());
    const double rate = LearningRate(job_.optimizer(), step, job_.train().steps());
    return trainer_.Step(step, rate, false);
  }

  Trainer& trainer() { return trainer_; }
  Device& device() { return *device_; }

 private:
  const JobSpec& job_;
  std::unique_ptr<Device> device_;
  Trainer trainer_;
};

}  // namespace

JobSpec TinyJob() {
  JobSpec job;
  job.set_name("tiny");
  ModelSpec& model = *job.mutable_model();
  model.set_residual(ModelSpec::SIAMESE_HYBRID_PRE);
  model.set_layers(4);
  model.set_hidden(32);
  model.set_heads(4);
  model.set_ffn(40);
  model.set_vocabulary(67);
  model.set_sequence(16);
  job.mutable_data()->add_train()->set_path("tokens.bin");
  OptimizerSpec& optimizer = *job.mutable_optimizer();
  optimizer.set_peak_lr(1e-2);
  optimizer.set_warmup_steps(2);
  TrainSpec& train = *job.mutable_train();
  train.set_steps(20);
  train.set_global_batch(12);
  train.set_z_loss(1e-3);
  return job;
}

ParallelSpec SpecOf(const Layout& layout) {
  ParallelSpec parallel;
  parallel.set_tensor(layout.tensor);
  parallel.set_context(layout.context);
  parallel.set_pipeline(layout.pipeline);
  parallel.set_data(layout.data);
  parallel.set_sequence_parallel(layout.sequence_parallel);
  parallel.set_expert(layout.expert);
  parallel.set_virtual_stages(layout.virtual_stages);
  parallel.set_schedule(layout.schedule);
  return parallel;
}

JobSpec OnLayout(JobSpec job, const Layout& layout) {
  job.mutable_parallel()->MergeFrom(SpecOf(layout));
  const int ranks = layout.tensor * layout.context * layout.pipeline * layout.data;
  job = ResolveJobSpec(job, ranks);
  const std::vector<std::string> problems = JobProblems(job, ranks);
  Check(problems.empty(), "%s: %s", NameOf(layout), absl::StrJoin(problems, "; "));
  return job;
}

std::string NameOf(const Layout& layout) {
  std::string name =
      absl::StrCat("t", layout.tensor, "c", layout.context, "p", layout.pipeline, "d", layout.data,
                   "e", layout.expert, layout.sequence_parallel ? "s" : "");
  if (layout.pipeline > 1) {
    absl::StrAppend(&name, "v", layout.virtual_stages, "_",
                    ParallelSpec::Schedule_Name(layout.schedule));
  }
  return name;
}

std::vector<Layout> Pipelines(int pipeline, int stages) {
  std::vector<Layout> layouts;
  const auto* descriptor = ParallelSpec::Schedule_descriptor();
  for (int i = 0; i < descriptor->value_count(); ++i) {
    const auto schedule = static_cast<ParallelSpec::Schedule>(descriptor->value(i)->number());
    const int least = HasVirtualStages(schedule) ? 2 : 1;
    const int most = HasVirtualStages(schedule) && pipeline > 1 ? stages / pipeline : 1;
    for (int chunks = least; chunks <= most; ++chunks) {
      layouts.push_back({.pipeline = pipeline, .virtual_stages = chunks, .schedule = schedule});
    }
  }
  return layouts;
}

TinyData::TinyData(const JobSpec& job) {
  const std::string path = directory_.Path("tokens.bin");
  std::ofstream file(path, std::ios::binary);
  uint64_t state = 12345;
  for (int64_t i = 0; i < kWindows * job.model().sequence() + 1; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const uint64_t token = (state >> 33) % static_cast<uint64_t>(job.model().vocabulary());
    const char bytes[2] = {static_cast<char>(token & 0xFF), static_cast<char>(token >> 8)};
    file.write(bytes, 2);
  }
  file.close();
  const bool shuffled = job.data().order() == DataSpec::SHUFFLED;
  absl::StatusOr<TokenDataset> dataset =
      TokenDataset::Open({.name = "data.train",
                          .files = {{.path = path}},
                          .sequence = job.model().sequence(),
                          .vocabulary = job.model().vocabulary(),
                          .order = shuffled ? TokenOrder::kShuffled : TokenOrder::kSequential,
                          .seed = job.train().seed()});
  Check(dataset.ok(), "%s", dataset.status().ToString());
  dataset_ = std::make_unique<TokenDataset>(*std::move(dataset));
}

RunRecord RunSteps(const JobSpec& job, const RunSpan& span) {
  const TinyData data(job);
  RunRecord record;
  Boxes boxes;
  std::mutex mutex;
  RunRanks(GridShape::From(job.parallel()).ranks(), [&](Transport& transport) {
    transport.SetWaitPolicy({.timeout_seconds = span.timeout_seconds});
    RankRun run(job, transport, span);
    run.Begin(span.load);
    for (int64_t step = span.first; step <= span.last; ++step) {
      if (span.before_step) span.before_step(run.trainer(), step);
      const StepResult result = run.Step(data.dataset(), step);
      if (transport.rank() != 0) continue;
      record.losses.push_back(result.loss);
      record.gradient_norms.push_back(result.gradient_norm);
      record.expert_imbalance = result.expert_imbalance;
      record.expert_tokens = {run.trainer().expert_tokens().begin(),
                              run.trainer().expert_tokens().end()};
    }
    if (!span.save.empty()) Save(job, span, run.trainer(), run.device());
    const std::lock_guard<std::mutex> lock(mutex);
    Collect(run.trainer().optimizer().OwnedPieces(), run.device(), &record.state);
    CompareReplicas(run.trainer(), run.device(), &boxes, &record);
    record.micro_batches_held =
        std::max(record.micro_batches_held, run.trainer().engine().peak_slots_seen());
    record.replayed_steps = run.trainer().replayed_steps();
  });
  return record;
}

double LargestRelative(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double relative = std::abs(a[i] / b[i] - 1);
    if (!(relative <= largest)) largest = relative;  // a NaN stays
  }
  return largest;
}

namespace {

struct Difference {
  double largest = 0, scale = 0;
};
Difference DifferenceOf(const std::vector<float>& a, const std::vector<float>& b) {
  Check(a.size() == b.size(), "tensors of %d and %d elements", a.size(), b.size());
  Difference difference;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(d <= difference.largest)) difference.largest = d;
    difference.scale = std::max(difference.scale, std::abs(static_cast<double>(b[i])));
  }
  return difference;
}

}  // namespace

double LargestOfTensor(const WholeTensors& a, const WholeTensors& b, const std::string& prefix) {
  double worst = 0;
  for (const auto& [name, values] : b) {
    if (!absl::StartsWith(name, prefix)) continue;
    const Difference difference = DifferenceOf(a.at(name), values);
    const double relative = difference.largest == 0 ? 0 : difference.largest / difference.scale;
    if (!(relative <= worst)) worst = relative;
  }
  return worst;
}

double LargestOfWeights(const WholeTensors& a, const WholeTensors& b) {
  double worst = 0;
  for (const auto& [name, values] : b) {
    if (absl::StartsWith(name, "adam_")) continue;
    const double largest = DifferenceOf(a.at(name), values).largest;
    if (!(largest <= worst)) worst = largest;
  }
  return worst;
}

bool Exhaustive() { return std::getenv("TWINSTREAM_EXHAUSTIVE") != nullptr; }

}  // namespace twinstream::testing
