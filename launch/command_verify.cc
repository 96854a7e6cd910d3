#include "launch/command_verify.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/crc32c.h"
#include "launch/host.h"
#include "launch/job_setup.h"
#include "launch/lr_schedule.h"
#include "parallel/collectives.h"
#include "parallel/thread_transport.h"
#include "proto/job_spec.h"

namespace twinstream {
namespace {

constexpr int64_t kSteps = 3;
// What float32 arithmetic in another order may differ by: measured on the golden files, two orders
// of magnitude below.
constexpr double kLossLimit = 1e-5;      // relative
constexpr double kNormLimit = 1e-4;      // relative
constexpr double kGradientLimit = 1e-4;  // of the tensor's largest element

struct Row {
  std::string what;
  double difference = 0, limit = 0;
  std::string note;
  bool ok() const { return difference <= limit; }  // false for a NaN
};

// The same job on one rank.
JobSpec ReferenceJob(const JobSpec& job) {
  JobSpec alone = job;
  alone.clear_parallel();
  return ResolveJobSpec(alone, 1);
}

// Rank 0's run of the same steps, by itself.
struct Reference {
  explicit Reference(const JobSpec& job_in, Device& device)
      : job(ReferenceJob(job_in)),
        hub(1),
        transport(hub, 0),
        trainer(job, Purpose::kTraining, AccumulationSteps(job), device, transport) {}

  JobSpec job;
  ThreadHub hub;
  ThreadTransport transport;
  Trainer trainer;
};

// Shrinks the model until rank 0 can hold it twice, whole and as a part. Layers go first: layouts
// are about what is in them and between them.
absl::Status FitReference(Runtime& runtime, Device& device, JobSpec* job, std::string* note) {
  int64_t layers = job->model().layers();
  if (runtime.rank() == 0) {
    const int64_t available = AvailableMemory();
    const auto fits = [&](int64_t count) {
      JobSpec smaller = *job;
      smaller.mutable_model()->set_layers(count);
      return available == 0 || Reference(smaller, device).trainer.memory().total() < available / 2;
    };
    while (layers > job->parallel().pipeline() && !fits(layers)) --layers;
    if (!fits(layers)) layers = 0;
  }
  // Rank 0's answer is the smallest: the others say the layers that the job has.
  const auto agreed = -static_cast<int64_t>(
      AllReduceValue(runtime.world(), -static_cast<double>(layers), Reduction::kMax));
  if (agreed == 0) {
    return absl::FailedPreconditionError(
        "rank 0's host cannot hold even one layer per stage of this model by itself");
  }
  if (agreed < job->model().layers()) {
    *note = absl::StrFormat("The model does not fit on one rank: %d of its %d layers are compared.",
                            agreed, job->model().layers());
    job->mutable_model()->set_layers(agreed);
  }
  return absl::OkStatus();
}

double MaxOverRanks(Runtime& runtime, double value) {
  return AllReduceValue(runtime.world(), value, Reduction::kMax);
}

// Largest |piece - reference| of this rank's pieces of one tensor; `whole` is the reference,
// row-major.
double LargestDifference(const std::vector<Piece>& pieces, const std::string& name,
                         const std::vector<float>& whole, Device& device) {
  double largest = 0;
  for (const Piece& piece : pieces) {
    if (piece.name != name) continue;
    std::vector<float> local(static_cast<size_t>(piece.data.elements()));
    device.CopyOut(local.data(), piece.data);
    const bool matrix = piece.global.rank() == 2;
    const int64_t columns = matrix ? piece.global[1] : 1, width = matrix ? piece.box.extent[1] : 1,
                  first = matrix ? piece.box.begin[1] : 0;
    for (int64_t i = 0; i < piece.data.elements(); ++i) {
      const int64_t at = (piece.box.begin[0] + i / width) * columns + first + i % width;
      const double difference = std::abs(static_cast<double>(local[static_cast<size_t>(i)]) -
                                         whole[static_cast<size_t>(at)]);
      if (!(difference <= largest)) largest = difference;
    }
  }
  return largest;
}

// The worst gradient tensor. Rank 0 sends each of its reference gradients round.
Row CompareGradients(Runtime& runtime, const Trainer& trainer, const Trainer* reference,
                     Device& device) {
  Row worst = {.what = "worst parameter gradient", .limit = kGradientLimit};
  const std::vector<Piece> pieces = trainer.optimizer().GradientPieces();
  for (const ModelParameter& parameter : trainer.model_parameters()) {
    std::vector<float> whole(static_cast<size_t>(parameter.shape.elements()));
    if (reference != nullptr) {
      for (const Piece& piece : reference->optimizer().GradientPieces()) {
        if (piece.name != parameter.name) continue;
        // Alone, a rank holds whole tensors: boxes are row ranges.
        const int64_t row = piece.global.elements() / piece.global[0];
        device.CopyOut(whole.data() + piece.box.begin[0] * row, piece.data);
      }
    }
    runtime.world().Broadcast(
        Tensor(reinterpret_cast<std::byte*>(whole.data()), DType::kF32, parameter.shape), 0);
    double scale = std::numeric_limits<float>::min();
    for (float value : whole) scale = std::max(scale, std::abs(static_cast<double>(value)));
    const double difference =
        MaxOverRanks(runtime, LargestDifference(pieces, parameter.name, whole, device)) / scale;
    if (worst.note.empty() || !(difference <= worst.difference)) {
      worst.difference = difference;
      worst.note = parameter.name;
    }
  }
  return worst;
}

// Names of boxes whose copies on different ranks are not the same bits.
Row CompareReplicas(Runtime& runtime, const Trainer& trainer, Device& device) {
  std::string mine;
  for (const Piece& piece : trainer.parameters().ValuePieces()) {
    std::vector<std::byte> bytes(static_cast<size_t>(piece.data.bytes()));
    device.CopyOut(bytes.data(), piece.data);
    absl::StrAppend(&mine, piece.name, piece.box.ToString(), "\n", ExtendCrc32c(0, bytes), "\n");
  }
  Row row = {.what = "replicas differ (boxes)"};
  std::map<std::string, std::string> digests;
  for (const std::string& text : GatherTexts(runtime.world(), mine)) {
    const std::vector<std::string> lines = absl::StrSplit(text, '\n');
    for (size_t i = 0; i + 1 < lines.size(); i += 2) {
      const auto [found, is_new] = digests.try_emplace(lines[i], lines[i + 1]);
      if (is_new || found->second == lines[i + 1]) continue;
      row.difference += 1;
      row.note = lines[i];
    }
  }
  row.difference = MaxOverRanks(runtime, row.difference);
  return row;
}

absl::Status Report(Runtime& runtime, const Trainer& trainer, const std::string& note,
                    const std::vector<Row>& rows) {
  bool ok = true;
  std::string table =
      absl::StrFormat("%s on %s against one rank, %d steps\n%s%s%-28s %12s %12s  %s\n",
                      trainer.job().name(), trainer.grid().shape().ToString(), kSteps, note,
                      note.empty() ? "" : "\n", "", "difference", "allowed", "verdict");
  for (const Row& row : rows) {
    ok = ok && row.ok();
    absl::StrAppendFormat(&table, "%-28s %12.2e %12.2e  %s%s\n", row.what, row.difference,
                          row.limit, row.ok() ? "ok" : "OUTSIDE",
                          row.note.empty() ? "" : absl::StrCat("  ", row.note));
  }
  if (runtime.rank() == 0) absl::PrintF("%s", table);
  if (ok) return absl::OkStatus();
  return absl::InternalError(
      "this layout does not compute what one rank computes: see the rows that are OUTSIDE");
}

// Steps on both; the rows that compare them.
std::vector<Row> CompareSteps(Runtime& runtime, Trainer& trainer, Reference* reference,
                              const TokenDataset& data, Device& device) {
  const JobSpec& job = trainer.job();
  Row loss = {.what = "loss", .limit = kLossLimit},
      norm = {.what = "gradient norm", .limit = kNormLimit}, gradient;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const auto step_on = [&](Trainer& on) {
      HostBatch batch = on.EmptyBatch();
      const absl::Status loaded =
          BatchLoader(data, on.batch_shape())
              .Load((step - 1) * job.train().global_batch(), absl::MakeSpan(batch.tokens),
                    absl::MakeSpan(batch.targets));
      Check(loaded.ok(), "%s", loaded.message());
      return on.Step(batch, step, LearningRate(job.optimizer(), step, job.train().steps()), false);
    };
    const StepResult result = step_on(trainer);
    double loss_difference = 0, norm_difference = 0;
    if (reference != nullptr) {
      const StepResult expected = step_on(reference->trainer);
      loss_difference = std::abs(result.loss / expected.loss - 1);
      norm_difference = std::abs(result.gradient_norm / expected.gradient_norm - 1);
    }
    loss.difference = std::max(loss.difference, MaxOverRanks(runtime, loss_difference));
    norm.difference = std::max(norm.difference, MaxOverRanks(runtime, norm_difference));
    // Later steps start from weights that Adam has moved by whole learning rates where gradients
    // are near zero: only the first step's gradients are comparable tensor by tensor.
    if (step == 1) {
      gradient = CompareGradients(runtime, trainer,
                                  reference == nullptr ? nullptr : &reference->trainer, device);
    }
  }
  return {loss, norm, gradient, CompareReplicas(runtime, trainer, device)};
}

}  // namespace

absl::Status CommandVerify(Runtime& runtime, const CommandLine& line) {
  absl::StatusOr<JobSpec> asked = AgreeOnJob(runtime, line.positional[0], line.overrides);
  if (!asked.ok()) return asked.status();
  absl::StatusOr<JobSpec> job = ResolveForRanks(runtime, *asked);
  if (!job.ok()) return job.status();
  NameRank(runtime, *job);
  const absl::StatusOr<TokenDataset> data = OpenData(runtime, *job, DataPart::kTrain);
  if (!data.ok()) return data.status();
  const absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(runtime, *job);
  if (!device.ok()) return device.status();
  std::string note;
  if (absl::Status s = FitReference(runtime, **device, &*job, &note); !s.ok()) return s;

  Trainer trainer(*job, Purpose::kTraining, AccumulationSteps(*job), **device, runtime.transport());
  if (absl::Status s = CheckHostMemory(runtime, trainer.memory()); !s.ok()) return s;
  trainer.Materialize();
  trainer.InitializeWeights();
  std::unique_ptr<Reference> reference;
  if (runtime.rank() == 0) {
    reference = std::make_unique<Reference>(*job, **device);
    reference->trainer.Materialize();
    reference->trainer.InitializeWeights();
  }
  return Report(runtime, trainer, note,
                CompareSteps(runtime, trainer, reference.get(), *data, **device));
}

}  // namespace twinstream
