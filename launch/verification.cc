#include "launch/verification.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/crc32c.h"
#include "launch/expected_rounding.h"
#include "launch/training_loop.h"
#include "parallel/collectives.h"
#include "parallel/thread_transport.h"
#include "proto/job_spec.h"

namespace twinstream {
namespace {

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

double MaxOverRanks(Communicator& world, double value) {
  return AllReduceValue(world, value, Reduction::kMax);
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

struct Deviation {
  double difference = 0;  // largest of an element
  double largest = 0;     // element of the reference
};

// Of one parameter's gradient, over all ranks. expected: of the whole tensor, on every rank.
Deviation DeviationOf(Communicator& world, const std::vector<Piece>& pieces,
                      const ModelParameter& parameter, std::vector<float>& expected,
                      Device& device) {
  Deviation deviation;
  for (float value : expected) deviation.largest = Maximum(deviation.largest, std::abs(value));
  ForEachPiece(pieces, parameter.name, device, [&](const Box& box, std::vector<float>& values) {
    std::vector<float> part(values.size());
    CopyBox(box, Box::Whole(parameter.shape), BytesOf(expected), box, BytesOf(part), sizeof(float));
    for (size_t i = 0; i < values.size(); ++i) {
      deviation.difference =
          Maximum(deviation.difference, std::abs(double{values[i]} - double{part[i]}));
    }
  });
  deviation.difference = MaxOverRanks(world, deviation.difference);
  return deviation;
}

// The worst gradient tensor. Rank 0, which alone has a reference, sends its gradients round. A
// tensor whose gradients are nothing beside the model's consists of what others' rounding leaves:
// it is measured by a thousandth of the model's largest.
VerificationRow CompareGradients(Communicator& world, const Trainer& trainer,
                                 const Reference* reference, double limit, Device& device) {
  const std::vector<Piece> pieces = trainer.optimizer().GradientPieces();
  std::vector<Piece> reference_pieces;
  if (reference != nullptr) reference_pieces = reference->trainer.optimizer().GradientPieces();
  std::vector<Deviation> deviations;
  double largest = 0;
  for (const ModelParameter& parameter : trainer.model_parameters()) {
    const Box all = Box::Whole(parameter.shape);
    std::vector<float> expected(static_cast<size_t>(all.elements()));
    ForEachPiece(reference_pieces, parameter.name, device,
                 [&](const Box& box, std::vector<float>& values) {
                   CopyBox(box, box, BytesOf(values), all, BytesOf(expected), sizeof(float));
                 });
    world.Broadcast(Tensor(BytesOf(expected), DType::kF32, parameter.shape), 0);
    deviations.push_back(DeviationOf(world, pieces, parameter, expected, device));
    largest = Maximum(largest, deviations.back().largest);
  }
  VerificationRow worst = {.what = "worst parameter gradient", .limit = limit};
  for (size_t i = 0; i < deviations.size(); ++i) {
    const double unit = Maximum(deviations[i].largest, 1e-3 * largest);
    const double relative = deviations[i].difference == 0 ? 0 : deviations[i].difference / unit;
    if (relative <= worst.difference || std::isnan(worst.difference)) continue;
    worst.difference = relative;
    worst.note = trainer.model_parameters()[i].name;
  }
  return worst;
}

// Boxes whose copies on different ranks are not the same bits.
VerificationRow CompareReplicas(Communicator& world, const Trainer& trainer, Device& device) {
  std::string mine;  // a line with name and box, a line with the digest
  for (const Piece& piece : trainer.parameters().ValuePieces()) {
    std::vector<std::byte> bytes(static_cast<size_t>(piece.data.bytes()));
    device.CopyOut(bytes.data(), piece.data);
    absl::StrAppend(&mine, piece.name, piece.box.ToString(), "\n", ExtendCrc32c(0, bytes), "\n");
  }
  VerificationRow row = {.what = "replicas differ (boxes)"};
  std::map<std::string, std::string> digests;
  for (const std::string& text : GatherTexts(world, mine)) {
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

double Relative(double value, double reference) {
  return value == reference ? 0 : std::abs(value / reference - 1);
}

// Includes what an update has. The note: where it is first too much.
void Include(double difference, int64_t update, VerificationRow* row) {
  const bool was_ok = row->ok();
  row->difference = Maximum(row->difference, difference);
  if (was_ok && !row->ok()) row->note = absl::StrCat("first in update ", update);
}

// The first updates on both. Only rank 0 has a reference.
Verification CompareUpdates(Communicator& world, Trainer& trainer, Reference* reference,
                            const TokenDataset& data, Device& device, int64_t updates) {
  const ExpectedRounding rounding = ExpectedRoundingOf(trainer.job());
  VerificationRow loss = {.what = "loss", .limit = rounding.loss},
                  norm = {.what = "gradient norm", .limit = rounding.norm}, gradient;
  Verification verification;
  while (verification.updates < updates) {
    const int64_t update = verification.updates + 1;
    const StepResult result = TrainUpdate(trainer, data, update, false);
    double loss_difference = 0, norm_difference = 0;
    bool finite = true;
    if (reference != nullptr) {
      const StepResult expected = TrainUpdate(reference->trainer, data, update, false);
      loss_difference = Relative(result.loss, expected.loss);
      norm_difference = Relative(result.gradient_norm, expected.gradient_norm);
      finite = expected.finite;
    }
    verification.nonfinite = AnyRank(world, !finite);
    if (verification.nonfinite) break;
    Include(MaxOverRanks(world, loss_difference), update, &loss);
    Include(MaxOverRanks(world, norm_difference), update, &norm);
    // Later updates start from weights that Adam has moved by whole learning rates where gradients
    // are near zero: only the first one's gradients are comparable tensor by tensor.
    if (update == 1) {
      gradient = CompareGradients(world, trainer, reference, rounding.gradient, device);
      verification.first_update_ok = loss.ok() && norm.ok() && gradient.ok();
    }
    verification.updates = update;
  }
  if (verification.updates > 0) verification.rows = {loss, norm, gradient};
  verification.rows.push_back(CompareReplicas(world, trainer, device));
  verification.first_update_ok = verification.first_update_ok && verification.rows.back().ok();
  return verification;
}

}  // namespace

bool Verification::rows_ok() const {
  return std::all_of(rows.begin(), rows.end(), [](const VerificationRow& row) { return row.ok(); });
}

Verification VerifyLayout(Communicator& world, Trainer& trainer, const TokenDataset& data,
                          Device& device, int64_t updates) {
  std::optional<Reference> reference;
  if (world.rank() == 0) {
    reference.emplace(trainer.job(), device);
    reference->trainer.Materialize();
    reference->trainer.InitializeWeights();
  }
  return CompareUpdates(world, trainer, reference ? &*reference : nullptr, data, device, updates);
}

MemoryPlan ReferenceMemory(const JobSpec& job, Device& device) {
  return Reference(job, device).trainer.memory();
}

std::string OutsideMessage(const JobSpec& job, const Verification& verification) {
  if (verification.rows_ok()) {
    return absl::StrFormat(
        "loss or gradient norm of update %d are no numbers on one rank either: nothing is compared "
        "from there on. Verify with a smaller %s.",
        verification.updates + 1,
        verification.updates == 0 ? "model.init.std" : "optimizer.peak_lr");
  }
  std::string message =
      "this layout does not compute what one rank computes: see the rows that are OUTSIDE";
  if (verification.first_update_ok) {
    absl::StrAppend(&message,
                    ". Loss and gradients of the first update are as on one rank. The learning "
                    "rate may be why later ones are not, as it takes whole steps along gradients "
                    "that are nothing but rounding: verify again with a smaller "
                    "optimizer.peak_lr, one at which an update still changes the third digit of "
                    "the loss. What is OUTSIDE there is the layout's.");
  }
  const bool routes = job.model().has_moe();
  if (!routes && job.train().precision() != TrainSpec::BF16) return message;
  const char* const reason =
      routes
          ? "near-ties of the router may be why (docs/experts.md)"
          : "norms of very short vectors, as of a narrow head, may be why: they amplify rounding";
  absl::StrAppend(&message, ". Unless replicas differ, ", reason,
                  ": verify again with train.precision FP32 and with other values of train.seed. A "
                  "wrong layout is OUTSIDE in all of them.");
  return message;
}

int64_t LayersToVerify(JobSpec job, int64_t bytes, Device& device) {
  const int64_t stages = int64_t{job.parallel().pipeline()} * job.parallel().virtual_stages();
  const auto fit = [&](int64_t layers) {
    job.mutable_model()->set_layers(layers);
    return bytes == 0 || ReferenceMemory(job, device).total() < bytes / 2;
  };
  int64_t fitting = stages - 1, too_many = job.model().layers() + 1;
  if (fit(too_many - 1)) return too_many - 1;
  while (too_many - fitting > 1) {
    const int64_t layers = (fitting + too_many) / 2;
    if (fit(layers)) {
      fitting = layers;
    } else {
      too_many = layers;
    }
  }
  return fitting < stages ? 0 : fitting;
}

}  // namespace twinstream
