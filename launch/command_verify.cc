#include "launch/command_verify.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/crc32c.h"
#include "core/maximum.h"
#include "launch/host.h"
#include "launch/job_setup.h"
#include "launch/training_loop.h"
#include "parallel/collectives.h"
#include "parallel/thread_transport.h"
#include "proto/job_spec.h"

namespace twinstream {
namespace {

constexpr int64_t kMostUpdates = 3;
// What float32 arithmetic in another order may differ by: measured on the golden files, two orders
// of magnitude below.
constexpr double kLossLimit = 1e-5;      // relative
constexpr double kNormLimit = 1e-4;      // relative
constexpr double kGradientLimit = 1e-4;  // of the tensor's largest element

struct Row {
  std::string what;
  double limit = 0, difference = 0;
  std::string note;
  bool ok() const { return difference <= limit; }  // false for a NaN
  void Include(double another) { difference = Maximum(difference, another); }
};

// The same job on one rank. Experts are balanced over a micro-batch of all data ranks together, so
// the one rank of an MoE model takes as much at a time.
JobSpec ReferenceJob(const JobSpec& job) {
  JobSpec alone = job;
  if (job.model().has_moe()) {
    alone.mutable_train()->set_microbatch(job.train().microbatch() * job.parallel().data());
  }
  alone.clear_parallel();
  return ResolveJobSpec(alone, 1);
}

// Rank 0's run of the same updates, by itself.
struct Reference {
  Reference(const JobSpec& job_in, Device& device)
      : job(ReferenceJob(job_in)),
        hub(1),
        transport(hub, 0),
        trainer(job, Purpose::kTraining, AccumulationSteps(job), device, transport) {}

  JobSpec job;
  ThreadHub hub;
  ThreadTransport transport;
  Trainer trainer;
};

// The most layers of the model that this host holds twice, whole and as parts; 0: not even one per
// stage. Layers go first because layouts are about what is in them and between them.
int64_t LayersThatFit(JobSpec job, Device& device) {
  const int64_t available = AvailableMemory();
  const int64_t stages = int64_t{job.parallel().pipeline()} * job.parallel().virtual_stages();
  for (int64_t layers = job.model().layers(); layers >= stages; --layers) {
    job.mutable_model()->set_layers(layers);
    if (available == 0 || Reference(job, device).trainer.memory().total() < available / 2) {
      return layers;
    }
  }
  return 0;
}

// Shrinks the model until it fits on rank 0. Returns what a person should know about that.
absl::StatusOr<std::string> FitReference(Runtime& runtime, Device& device, JobSpec* job) {
  const int64_t fitting = runtime.rank() == 0 ? LayersThatFit(*job, device) : 0;
  const int64_t layers = static_cast<int64_t>(
      AllReduceValue(runtime.world(), static_cast<double>(fitting), Reduction::kSum));
  if (layers == 0) {
    return absl::FailedPreconditionError(
        "rank 0's host cannot hold even one layer per stage of this model by itself");
  }
  const int64_t asked = job->model().layers();
  job->mutable_model()->set_layers(layers);
  return layers == asked ? ""
                         : absl::StrFormat(
                               "The model does not fit on one rank: %d of its %d "
                               "layers are compared.\n",
                               layers, asked);
}

double MaxOverRanks(Runtime& runtime, double value) {
  return AllReduceValue(runtime.world(), value, Reduction::kMax);
}

std::byte* BytesOf(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

// Calls f(box, values) for the pieces of one tensor; `values` [box.elements()] are on the host.
void ForEachPiece(const std::vector<Piece>& pieces, const std::string& name, Device& device,
                  absl::FunctionRef<void(const Box& box, std::vector<float>& values)> f) {
  for (const Piece& piece : pieces) {
    if (piece.name != name) continue;
    std::vector<float> values(static_cast<size_t>(piece.data.elements()));
    device.CopyOut(values.data(), piece.data);
    f(piece.box, values);
  }
}

// The worst gradient tensor. Rank 0, which alone has a reference, sends its gradients round.
Row CompareGradients(Runtime& runtime, const Trainer& trainer, const Reference* reference,
                     Device& device) {
  constexpr int64_t kBytes = sizeof(float);
  Row worst = {.what = "worst parameter gradient", .limit = kGradientLimit};
  const std::vector<Piece> pieces = trainer.optimizer().GradientPieces();
  std::vector<Piece> reference_pieces;
  if (reference != nullptr) reference_pieces = reference->trainer.optimizer().GradientPieces();
  for (const ModelParameter& parameter : trainer.model_parameters()) {
    const Box all = Box::Whole(parameter.shape);
    std::vector<float> expected(static_cast<size_t>(all.elements()));
    ForEachPiece(reference_pieces, parameter.name, device,
                 [&](const Box& box, std::vector<float>& values) {
                   CopyBox(box, box, BytesOf(values), all, BytesOf(expected), kBytes);
                 });
    runtime.world().Broadcast(Tensor(BytesOf(expected), DType::kF32, parameter.shape), 0);
    double largest = std::numeric_limits<float>::min(), difference = 0;
    for (float value : expected) largest = Maximum(largest, std::abs(value));
    ForEachPiece(pieces, parameter.name, device, [&](const Box& box, std::vector<float>& values) {
      std::vector<float> part(values.size());
      CopyBox(box, all, BytesOf(expected), box, BytesOf(part), kBytes);
      for (size_t i = 0; i < values.size(); ++i) {
        difference = Maximum(difference, std::abs(double{values[i]} - double{part[i]}));
      }
    });
    const double relative = MaxOverRanks(runtime, difference) / largest;
    if (relative <= worst.difference || std::isnan(worst.difference)) continue;
    worst.difference = relative;
    worst.note = parameter.name;
  }
  return worst;
}

// Boxes whose copies on different ranks are not the same bits.
Row CompareReplicas(Runtime& runtime, const Trainer& trainer, Device& device) {
  std::string mine;  // a line with name and box, a line with the digest
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
  return row;
}

// The first updates on both; the rows that compare them. Only rank 0 has a reference.
std::vector<Row> CompareUpdates(Runtime& runtime, Trainer& trainer, Reference* reference,
                                const TokenDataset& data, Device& device, int64_t updates) {
  Row loss = {.what = "loss", .limit = kLossLimit},
      norm = {.what = "gradient norm", .limit = kNormLimit}, gradient;
  for (int64_t update = 1; update <= updates; ++update) {
    const StepResult result = TrainUpdate(trainer, data, update, false);
    double loss_difference = 0, norm_difference = 0;
    if (reference != nullptr) {
      const StepResult expected = TrainUpdate(reference->trainer, data, update, false);
      loss_difference = std::abs(result.loss / expected.loss - 1);
      norm_difference = std::abs(result.gradient_norm / expected.gradient_norm - 1);
    }
    loss.Include(MaxOverRanks(runtime, loss_difference));
    norm.Include(MaxOverRanks(runtime, norm_difference));
    // Later updates start from weights that Adam has moved by whole learning rates where gradients
    // are near zero: only the first one's gradients are comparable tensor by tensor.
    if (update == 1) gradient = CompareGradients(runtime, trainer, reference, device);
  }
  return {loss, norm, gradient, CompareReplicas(runtime, trainer, device)};
}

std::string TableOf(const std::vector<Row>& rows) {
  std::string table =
      absl::StrFormat("%-28s %12s %12s  %s\n", "", "difference", "allowed", "verdict");
  for (const Row& row : rows) {
    absl::StrAppendFormat(&table, "%-28s %12.2e %12.2e  %s%s\n", row.what, row.difference,
                          row.limit, row.ok() ? "ok" : "OUTSIDE",
                          row.note.empty() ? "" : absl::StrCat("  ", row.note));
  }
  return table;
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
  const absl::StatusOr<std::string> note = FitReference(runtime, **device, &*job);
  if (!note.ok()) return note.status();

  Trainer trainer(*job, Purpose::kTraining, AccumulationSteps(*job), **device, runtime.transport());
  if (absl::Status s = CheckHostMemory(runtime, trainer.memory()); !s.ok()) return s;
  trainer.Materialize();
  trainer.InitializeWeights();
  std::optional<Reference> reference;
  if (runtime.rank() == 0) {
    reference.emplace(*job, **device);
    reference->trainer.Materialize();
    reference->trainer.InitializeWeights();
  }
  const int64_t updates = std::min(kMostUpdates, job->train().steps());
  const std::vector<Row> rows =
      CompareUpdates(runtime, trainer, reference ? &*reference : nullptr, *data, **device, updates);
  if (runtime.rank() == 0) {
    absl::PrintF("%s on %s against one rank, %d updates\n%s%s", job->name(),
                 trainer.grid().shape().ToString(), updates, *note, TableOf(rows));
  }
  if (std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.ok(); })) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      "this layout does not compute what one rank computes: see the rows that are OUTSIDE");
}

}  // namespace twinstream
