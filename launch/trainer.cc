#include "launch/trainer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace twinstream {
namespace {

std::string Size(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? absl::StrFormat("%.1f MiB", mib) : absl::StrFormat("%.2f GiB", mib / 1024);
}

std::vector<std::string> Names(const std::vector<ModelParameter>& parameters) {
  std::vector<std::string> names;
  for (const ModelParameter& parameter : parameters) names.push_back(parameter.name);
  return names;
}

StageOptions OptionsOf(const JobSpec& job, const ProcessGrid& grid) {
  const int stages = grid.shape().pipeline, stage = grid.at().pipeline;
  const double targets = static_cast<double>(job.train().global_batch() * job.model().sequence());
  return {.layers = StageLayers(job.model(), stages)[static_cast<size_t>(stage)],
          .first = stage == 0,
          .last = stage == stages - 1,
          .z_loss = static_cast<float>(job.train().z_loss()),
          .gradient_scale = static_cast<float>(1.0 / targets),
          .recompute = job.parallel().recompute()};
}

// This rank's program and what the checker says of all ranks' together.
Program Checked(const std::vector<Program>& compute, const PipelineShape& shape, int rank,
                ScheduleReport* report) {
  const std::vector<Program> programs = LowerSchedule(compute, shape);
  absl::StatusOr<ScheduleReport> checked = CheckSchedule(programs, shape);
  Check(checked.ok(), "the pipeline schedule is wrong: %s", checked.status().ToString());
  *report = *checked;
  return programs[static_cast<size_t>(rank)];
}

}  // namespace

int64_t AccumulationSteps(const JobSpec& job) {
  return job.train().global_batch() / (job.train().microbatch() * job.parallel().data());
}

std::string MemoryPlan::ToString() const {
  return absl::StrFormat(
      "weights %s, gradients %s, optimizer %s, activations %s, scratch %s, batch %s: total %s",
      Size(weights), Size(gradients), Size(optimizer), Size(activations), Size(scratch),
      Size(batch), Size(total()));
}

Trainer::Trainer(const JobSpec& job, Purpose purpose, int64_t micro_batches, Device& device,
                 Transport& transport)
    : job_(job),
      purpose_(purpose),
      micro_batches_(micro_batches),
      device_(device),
      grid_(GridShape::From(job.parallel()), transport),
      region_(grid_.tensor(), job.parallel().sequence_parallel()),
      model_parameters_(ModelParameters(job.model(), device)),
      context_{.model = job.model(),
               .batch = job.train().microbatch(),
               .device = device,
               .ops = device.ops(),
               .region = region_,
               .parameters = parameters_,
               .context_ranks = &grid_.context()},
      stage_(context_, OptionsOf(job, grid_)),
      optimizer_(job.optimizer(), job.parallel().shard_optimizer(), parameters_, grid_, device,
                 Names(model_parameters_)),
      pipeline_{.ranks = grid_.shape().pipeline,
                .chunks = 1,
                .micro_batches = static_cast<int>(micro_batches)} {
  training_ = Checked(GenerateSchedule(job.parallel().schedule(), pipeline_), pipeline_,
                      grid_.at().pipeline, &training_report_);
  forward_only_ =
      Checked(GenerateForwardOnly(pipeline_), pipeline_, grid_.at().pipeline, &forward_report_);
}

std::vector<TensorSpec> Trainer::BatchSpecs() const {
  const Shape tokens = {micro_batches_, context_.tokens()};
  return {{"tokens", DType::kI32, tokens},
          {"targets", DType::kI32, tokens},
          {"sums", DType::kF64, {2}},     // this rank's, on the last stage
          {"results", DType::kF64, {2}},  // everybody's
          {"flags", DType::kI32, {1}},
          {"logits", DType::kF32, {1, job_.model().vocabulary()}},
          {"rope", DType::kF32, {context_.shard().tokens(), job_.model().head_dim()}}};
}

MemoryPlan Trainer::memory() const {
  const bool training = purpose_ == Purpose::kTraining;
  return {.weights = parameters_.value_bytes(),
          .gradients = training ? parameters_.gradient_bytes() : 0,
          .optimizer = training ? optimizer_.state_bytes() + optimizer_.buffer_bytes() : 0,
          .activations = PipelineEngine::SlotBytes({&stage_}, PeakSlots()),
          .scratch = stage_.ScratchBytes(),
          .batch = BytesFor(BatchSpecs())};
}

int Trainer::PeakSlots() const {
  const size_t rank = static_cast<size_t>(grid_.at().pipeline);
  const int forward_only = forward_report_.peak_slots[rank];
  return purpose_ == Purpose::kTraining ? std::max(training_report_.peak_slots[rank], forward_only)
                                        : forward_only;
}

void Trainer::Materialize() {
  parameters_.Materialize(
      device_, purpose_ == Purpose::kTraining ? Gradients::kAllocated : Gradients::kNone);
  if (purpose_ == Purpose::kTraining) optimizer_.Materialize();
  scratch_ = std::make_unique<Scratch>(device_, stage_.ScratchBytes());
  context_.scratch = scratch_.get();

  const std::vector<TensorSpec> specs = BatchSpecs();
  batch_storage_ = Storage(device_, BytesFor(specs));
  const std::vector<Tensor> tensors = TensorsIn(batch_storage_.data(), specs);
  tokens_ = tensors[0];
  targets_ = tensors[1];
  sums_ = tensors[2];
  results_ = tensors[3];
  flags_ = tensors[4];
  logits_ = tensors[5];
  context_.rope = tensors[6];
  device_.CopyIn(context_.rope, RopeTable(job_.model(), context_.shard()).data());

  engine_ = std::make_unique<PipelineEngine>(std::vector<Stage*>{&stage_}, pipeline_,
                                             grid_.pipeline(), device_, PeakSlots());
}

bool Trainer::HasParameter(absl::string_view name) const {
  return std::any_of(model_parameters_.begin(), model_parameters_.end(),
                     [&](const ModelParameter& parameter) { return parameter.name == name; });
}

void Trainer::InitializeWeights() { parameters_.Initialize(device_, job_.train().seed()); }

BatchShape Trainer::batch_shape() const {
  return {.microbatches = micro_batches_,
          .microbatch = context_.batch,
          .data_ranks = grid_.data().size(),
          .data_rank = grid_.data().rank(),
          .context_ranks = grid_.context().size(),
          .context_rank = grid_.context().rank()};
}

HostBatch Trainer::EmptyBatch() const {
  const size_t size = static_cast<size_t>(micro_batches_ * context_.tokens());
  return {.tokens = std::vector<int32_t>(size), .targets = std::vector<int32_t>(size)};
}

void Trainer::Run(TransformerStage::Pass pass, const HostBatch& batch, const Program& program) {
  Check(static_cast<int64_t>(batch.tokens.size()) == tokens_.elements(),
        "a batch of %d tokens, not %d", batch.tokens.size(), tokens_.elements());
  device_.CopyIn(tokens_, batch.tokens.data());
  device_.CopyIn(targets_, batch.targets.data());
  device_.ops().Zero(sums_);
  stage_.SetBatch(pass, tokens_, targets_, sums_);
  engine_->Run(program, [&](int /*stage*/) { optimizer_.Reduce(stage_.parameters()); });
}

// Sums of the last stages' losses over the data and context ranks, on every rank. Each addend comes
// from one tensor rank alone and zeros from all others, so the bits depend on those ranks only.
std::array<double, 2> Trainer::SumLosses() {
  std::array<double, 2> sums = {};
  if (!stage_.has_next() && grid_.tensor().rank() == 0) device_.CopyOut(sums.data(), sums_);
  device_.CopyIn(results_, sums.data());
  grid_.world().AllReduce(results_, Reduction::kSum);
  device_.CopyOut(sums.data(), results_);
  return sums;
}

bool Trainer::AnyRank(bool here) {
  int32_t flag = here ? 1 : 0;
  device_.CopyIn(flags_, &flag);
  grid_.world().AllReduce(flags_, Reduction::kMax);
  device_.CopyOut(&flag, flags_);
  return flag != 0;
}

StepResult Trainer::Step(const HostBatch& batch, int64_t update, double learning_rate,
                         bool stop_requested) {
  parameters_.ZeroGradients(device_.ops());
  Run(TransformerStage::Pass::kTraining, batch, training_);
  const std::array<double, 2> sums = SumLosses();
  const double targets = static_cast<double>(job_.train().global_batch() * job_.model().sequence());
  StepResult result = {.cross_entropy = sums[0] / targets};
  result.loss = result.cross_entropy + job_.train().z_loss() * sums[1] / targets;
  result.gradient_norm = optimizer_.GradientNorm();
  result.finite = std::isfinite(result.loss) && std::isfinite(result.gradient_norm);
  result.stop = AnyRank(stop_requested);
  if (result.finite) optimizer_.Step(update, learning_rate, result.gradient_norm);
  return result;
}

double Trainer::EvaluationLoss(const HostBatch& batch) {
  ActivityScope doing("evaluation");
  Run(TransformerStage::Pass::kEvaluation, batch, forward_only_);
  return SumLosses()[0];
}

std::vector<float> Trainer::NextTokenLogits(const std::vector<int32_t>& tokens, int64_t row) {
  ActivityScope doing("generation");
  const SequenceShard shard = context_.shard();
  HostBatch batch = EmptyBatch();
  for (int64_t n = 0; n < context_.tokens(); ++n) {
    const int64_t b = n / shard.tokens(), position = shard.Position(n % shard.tokens());
    batch.tokens[static_cast<size_t>(n)] =
        tokens.at(static_cast<size_t>(b * shard.sequence + position));
  }
  // Every context rank computes its row of this index; the owner's is the one that was asked for.
  const SequenceShard::Place place = shard.PlaceOf(row % shard.sequence);
  stage_.SetNextToken(row / shard.sequence * shard.tokens() + place.index, logits_);
  Run(TransformerStage::Pass::kNextToken, batch, forward_only_);
  grid_.pipeline().Broadcast(logits_, grid_.pipeline().size() - 1);
  grid_.context().Broadcast(logits_, place.rank);
  std::vector<float> logits(static_cast<size_t>(logits_.elements()));
  device_.CopyOut(logits.data(), logits_);
  return logits;
}

}  // namespace twinstream
