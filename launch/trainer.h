// Trainer: one rank's part of a model, and the steps that train, evaluate and ask it. Owns grid,
// parameters, stages, optimizer, engine and their memory; contains no arithmetic and no case
// distinction about parallelism.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/device.h"
#include "launch/batch_loader.h"
#include "launch/memory_plan.h"
#include "launch/step_replay.h"
#include "models/decoder.h"
#include "models/transformer_stage.h"
#include "parallel/expert_region.h"
#include "parallel/optimizer.h"
#include "parallel/pipeline_engine.h"
#include "parallel/process_grid.h"
#include "parallel/span.h"
#include "proto/job.pb.h"

namespace twinstream {

enum class Purpose { kTraining, kInference };  // inference has neither gradients nor an optimizer

// kOn: what a training step gives the device up to its gradients is recorded once and from then on
// run as a whole, where the device records and the host has no part in it: a dense model, one rank
// or tensors that go from card to card, a step that nobody observes. A step of several ranks is to
// end within the transport's timeout then.
enum class Replay { kOff, kOn };

// How steps are carried out: nothing here changes a bit of what they compute.
struct ExecutionOptions {
  Overlap overlap = Overlap::kOn;
  Replay replay = Replay::kOff;
};

// One global batch's part of this rank: [M, N] each.
struct HostBatch {
  HostArray<int32_t> tokens, targets;
};

// Over the whole global batch; the same on every rank.
struct StepResult {
  double loss = 0, cross_entropy = 0;
  double load_balance = 0, router_z = 0;  // MoE: before their coefficients
  double expert_imbalance = 0;  // MoE: the largest share of a layer's tokens that an expert took,
                                // times the experts
  double gradient_norm = 0;     // before clipping
  bool finite = true;           // false: no update was made
  bool stop = false;            // some rank was asked to stop
};

// Micro-batches per data rank and update. job: resolved.
int64_t AccumulationSteps(const JobSpec& job);

class Trainer final : private StageObserver {
 public:
  // job: resolved, without problems for transport.size() ranks. micro_batches: per step and data
  // rank (M). Allocates only what Materialize asks for. All arguments outlive the trainer.
  Trainer(const JobSpec& job, Purpose purpose, int64_t micro_batches, Device& device,
          Transport& transport, const ExecutionOptions& execution = {});

  MemoryPlan memory() const;
  void Materialize();        // allocates everything that steps use
  void InitializeWeights();  // from train.seed
  // What other sources of weights fill on this rank: values, replicas included, and the float32
  // master weights of bf16 values.
  std::vector<Piece> WeightPieces() const;

  // What Step and EvaluationLoss take: for their caller to fill, zeros until then. From Materialize
  // on; NextTokenLogits writes there.
  HostBatch& batch() { return batch_; }
  // One update. update: 1 for the first. stop_requested: on this rank. Afterwards
  // optimizer().GradientPieces() are the gradients that the update used. Returns while other ranks'
  // new values are still on their way; whatever reads them waits.
  StepResult Step(int64_t update, double learning_rate, bool stop_requested);
  // Who is told what this rank does in the steps to come; null: nobody. Outlives them.
  void Observe(SpanObserver* observer) { observer_ = observer == nullptr ? &nobody_ : observer; }
  // Steps so far that were run from a recording: neither the first nor observed ones are.
  int64_t replayed_steps() const { return replayed_steps_; }
  // The most spans that a step tells of.
  int64_t SpansPerStep() const;
  // MoE: tokens that each expert took in the last step, all layers together; else empty.
  absl::Span<const int64_t> expert_tokens() const { return expert_tokens_; }
  // Sum of the cross-entropy over the global batch's targets; of MoE models too, whose auxiliary
  // losses are for training alone.
  double EvaluationLoss();
  // Logits [V] after token `row` of `tokens`, [B * T] in whole sequences, the same on every rank;
  // of inference with M = 1.
  std::vector<float> NextTokenLogits(const std::vector<int32_t>& tokens, int64_t row);

  const JobSpec& job() const { return job_; }
  Purpose purpose() const { return purpose_; }
  Device& device() const { return device_; }
  bool HasParameter(absl::string_view name) const;  // of the whole model
  BatchShape batch_shape() const;
  const ProcessGrid& grid() const { return grid_; }
  const std::vector<ModelParameter>& model_parameters() const { return model_parameters_; }
  // Waits for values that are on their way.
  const ParameterStore& parameters() const;
  const Optimizer& optimizer() const { return optimizer_; }
  const ScheduleReport& schedule() const { return training_report_; }
  const Program& program() const { return training_; }  // this rank's
  const PipelineEngine& engine() const { return *engine_; }

 private:
  void ValuesNeeded(Range parameters) override;
  void GradientsReady(Range parameters) override;
  std::vector<Stage*> Stages() const;
  int64_t ScratchBytes() const;
  int PeakSlots() const;
  // Cross-entropy, logsumexp^2, then ModelContext::router_sums; over the global batch.
  absl::Span<const double> SumLosses();
  void AddRouterLosses(absl::Span<const double> router_sums, StepResult* result);
  StepResult Measure(bool stop_requested);  // what the step is known by before its update
  void LoadBatch();
  void SetBatch(TransformerStage::Pass pass);
  void Rehearse();
  void Run(TransformerStage::Pass pass, const Program& program, SpanObserver& observer);
  void ComputeGradients();
  std::optional<StepReplay> ReplayFor(Replay replay, double timeout_seconds);
  bool ReplayGradients();
  std::vector<TensorSpec> BatchSpecs() const;

  const JobSpec& job_;
  const Purpose purpose_;
  const Overlap overlap_;
  const int64_t micro_batches_;
  Device& device_;
  ProcessGrid grid_;
  TensorRegion region_;
  ExpertRegion experts_;
  std::vector<ModelParameter> model_parameters_;
  ParameterStore parameters_;
  ModelContext context_;
  PipelineShape pipeline_;
  std::vector<std::unique_ptr<TransformerStage>> stages_;  // this rank's chunks, in order
  CommunicationThread communication_;
  Optimizer optimizer_;
  Program training_, forward_only_;
  ScheduleReport training_report_, forward_report_;
  Storage batch_storage_;
  Tensor tokens_, targets_, sums_, logits_;  // in batch_storage_; sums_: this rank's
  HostArray<double> host_sums_;              // everybody's
  HostArray<int32_t> expert_rows_;           // ModelContext::expert_rows
  HostBatch batch_;
  std::vector<int64_t> expert_tokens_;  // [E]
  std::unique_ptr<Scratch> scratch_;
  std::unique_ptr<PipelineEngine> engine_;
  Unobserved nobody_;
  SpanObserver* observer_ = &nobody_;  // of training steps
  bool prepared_ = false;              // a first step has chosen what its operations run with
  std::optional<StepReplay> replay_;   // of ComputeGradients; none too once a device has refused
  int64_t replayed_steps_ = 0;
};

}  // namespace twinstream
