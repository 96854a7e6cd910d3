#include "launch/trainer.h"

#include <algorithm>
#include <cmath>

#include "models/moe.h"
#include "parallel/collectives.h"

namespace twinstream {
namespace {

constexpr int64_t kHeadSums = 2;  // LmHead's, before ModelContext::router_sums

std::vector<std::string> Names(const std::vector<ModelParameter>& parameters) {
  std::vector<std::string> names;
  for (const ModelParameter& parameter : parameters) names.push_back(parameter.name);
  return names;
}

Gradients GradientsFor(Purpose purpose) {
  return purpose == Purpose::kTraining ? Gradients::kAllocated : Gradients::kNone;
}

ExpertRegion ExpertsOf(const JobSpec& job, const ProcessGrid& grid) {
  if (!job.model().has_moe()) return ExpertRegion::Alone();
  return {grid.In(GridGroup::kExperts), grid.In(GridGroup::kReplicas)};
}

// Stage `stage` of `stages`.
StageOptions OptionsOf(const JobSpec& job, int stage, int stages) {
  const double targets = static_cast<double>(job.train().global_batch() * job.model().sequence());
  return {.layers = StageLayers(job.model(), stages)[static_cast<size_t>(stage)],
          .first = stage == 0,
          .last = stage == stages - 1,
          .z_loss = static_cast<float>(job.train().z_loss()),
          .gradient_scale = static_cast<float>(1.0 / targets),
          .micro_batch_share = 1.0F / static_cast<float>(AccumulationSteps(job)),
          .recompute = job.parallel().recompute()};
}

// This rank's stages in order; declares their parameters in this order.
std::vector<std::unique_ptr<TransformerStage>> MakeStages(const JobSpec& job, int rank,
                                                          const PipelineShape& pipeline,
                                                          ModelContext& context) {
  std::vector<std::unique_ptr<TransformerStage>> stages;
  for (int stage = rank; stage < pipeline.stages(); stage += pipeline.ranks) {
    stages.push_back(
        std::make_unique<TransformerStage>(context, OptionsOf(job, stage, pipeline.stages())));
  }
  return stages;
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

Trainer::Trainer(const JobSpec& job, Purpose purpose, int64_t micro_batches, Device& device,
                 Transport& transport, const ExecutionOptions& execution)
    : job_(job),
      purpose_(purpose),
      overlap_(execution.overlap),
      micro_batches_(micro_batches),
      device_(device),
      grid_(GridShape::From(job.parallel()), UseOfPasses(job, GradientsFor(purpose)), transport,
            device),
      region_(grid_.tensor(), job.parallel().sequence_parallel()),
      experts_(ExpertsOf(job, grid_)),
      model_parameters_(ModelParameters(job.model(), device)),
      parameters_(ActivationType(job.train().precision())),
      context_{.model = job.model(),
               .batch = job.train().microbatch(),
               .device = device,
               .ops = device.ops(),
               .region = region_,
               .experts = experts_,
               .parameters = parameters_,
               .context_ranks = &grid_.context(),
               .activation = ActivationType(job.train().precision())},
      pipeline_{.ranks = grid_.shape().pipeline,
                .chunks = job.parallel().virtual_stages(),
                .micro_batches = static_cast<int>(micro_batches)},
      stages_(MakeStages(job, grid_.at().pipeline, pipeline_, context_)),
      communication_(overlap_, UseOfUpdates(parameters_, grid_.shape(), GradientsFor(purpose)),
                     grid_, transport, device),
      optimizer_(job.optimizer(), job.parallel().shard_optimizer(), parameters_, communication_,
                 device, Names(model_parameters_)),
      replay_(ReplayFor(execution.replay, transport.timeout_seconds())) {
  training_ = Checked(GenerateSchedule(job.parallel().schedule(), pipeline_), pipeline_,
                      grid_.at().pipeline, &training_report_);
  forward_only_ =
      Checked(GenerateForwardOnly(pipeline_), pipeline_, grid_.at().pipeline, &forward_report_);
}

std::optional<StepReplay> Trainer::ReplayFor(Replay replay, double timeout_seconds) {
  const bool on_network = grid_.path() == TensorPath::kNetwork;
  const bool of_host = job_.model().has_moe() || (!on_network && grid_.world().size() > 1);
  if (replay == Replay::kOff || of_host) return std::nullopt;
  std::unique_ptr<DeviceWatch> watch;
  if (on_network) {
    watch = device_.network()->Watch(std::string(grid_.world().name()), timeout_seconds);
  }
  return std::make_optional<StepReplay>(device_, grid_.world(), std::move(watch));
}

std::vector<TensorSpec> Trainer::BatchSpecs() const {
  const Shape tokens = {micro_batches_, context_.tokens()};
  const Shape sums = {kHeadSums + RouterSumElements(job_.model())};
  return {{"tokens", DType::kI32, tokens},
          {"targets", DType::kI32, tokens},
          {"sums", DType::kF64, sums},
          {"logits", DType::kF32, {1, job_.model().vocabulary()}},
          {"rope", DType::kF32, {context_.shard().tokens(), job_.model().head_dim()}}};
}

MemoryPlan Trainer::memory() const {
  const bool training = purpose_ == Purpose::kTraining;
  return {.weights = parameters_.value_bytes(),
          .gradients = training ? parameters_.gradient_bytes() : 0,
          .optimizer = training ? optimizer_.state_bytes() + optimizer_.buffer_bytes() : 0,
          .activations = PipelineEngine::SlotBytes(Stages(), PeakSlots()),
          .scratch = ScratchBytes(),
          .batch = BytesFor(BatchSpecs())};
}

std::vector<Stage*> Trainer::Stages() const {
  std::vector<Stage*> stages;
  for (const std::unique_ptr<TransformerStage>& stage : stages_) stages.push_back(stage.get());
  return stages;
}

// Stages take turns in the scratch memory.
int64_t Trainer::ScratchBytes() const {
  int64_t bytes = 0;
  for (const std::unique_ptr<TransformerStage>& stage : stages_) {
    bytes = std::max(bytes, stage->ScratchBytes());
  }
  return bytes;
}

int Trainer::PeakSlots() const {
  const size_t rank = static_cast<size_t>(grid_.at().pipeline);
  const int forward_only = forward_report_.peak_slots[rank];
  return purpose_ == Purpose::kTraining ? std::max(training_report_.peak_slots[rank], forward_only)
                                        : forward_only;
}

void Trainer::Materialize() {
  parameters_.Materialize(device_, GradientsFor(purpose_));
  if (purpose_ == Purpose::kTraining) optimizer_.Materialize();
  scratch_ = std::make_unique<Scratch>(device_, ScratchBytes());
  context_.scratch = scratch_.get();
  context_.observer = this;

  const std::vector<TensorSpec> specs = BatchSpecs();
  batch_storage_ = Storage(device_, BytesFor(specs));
  const std::vector<Tensor> tensors = TensorsIn(batch_storage_.data(), specs);
  tokens_ = tensors[0];
  targets_ = tensors[1];
  sums_ = tensors[2];
  logits_ = tensors[3];
  context_.rope = tensors[4];
  context_.router_sums = sums_.Rows(kHeadSums, sums_.elements());
  host_sums_ = HostArray<double>(device_, sums_.elements());
  expert_rows_ = HostArray<int32_t>(device_, 2 * job_.model().moe().experts());
  context_.expert_rows = absl::MakeSpan(expert_rows_);
  batch_ = {.tokens = {device_, tokens_.elements()}, .targets = {device_, tokens_.elements()}};
  expert_tokens_.resize(static_cast<size_t>(job_.model().moe().experts()));
  device_.CopyIn(context_.rope, RopeTable(job_.model(), context_.shard()).data());

  // A network moves messages by itself, and a receive that it has begun takes the device's
  // multiprocessors from what is computed until it is met: there none begins early.
  const bool moves_messages = overlap_ == Overlap::kOn && grid_.path() != TensorPath::kNetwork;
  engine_ =
      std::make_unique<PipelineEngine>(Stages(), pipeline_, grid_.pipeline(), device_, PeakSlots(),
                                       moves_messages ? &communication_ : nullptr);
}

bool Trainer::HasParameter(absl::string_view name) const {
  return std::any_of(model_parameters_.begin(), model_parameters_.end(),
                     [&](const ModelParameter& parameter) { return parameter.name == name; });
}

const ParameterStore& Trainer::parameters() const {
  optimizer_.WaitForValues({0, parameters_.size()});
  return parameters_;
}

void Trainer::InitializeWeights() {
  parameters_.Initialize(device_, job_.train().seed());
  if (purpose_ == Purpose::kTraining) optimizer_.InitializeMasters(job_.train().seed());
}

std::vector<Piece> Trainer::WeightPieces() const {
  const ParameterStore& values = parameters();
  return purpose_ == Purpose::kTraining ? optimizer_.WeightPieces() : values.ValuePieces();
}

BatchShape Trainer::batch_shape() const {
  return {.microbatches = micro_batches_,
          .microbatch = context_.batch,
          .data_ranks = grid_.shape().data,
          .data_rank = grid_.at().data,
          .context_ranks = grid_.shape().context,
          .context_rank = grid_.at().context};
}

// Every instruction, the wait for every send and every parameter, and what Step does around the
// schedule.
int64_t Trainer::SpansPerStep() const {
  return 2 * static_cast<int64_t>(training_.size()) + parameters_.size() + 8;
}

void Trainer::LoadBatch() {
  device_.CopyIn(tokens_, batch_.tokens.data());
  device_.CopyIn(targets_, batch_.targets.data());
}

// For the batch that is loaded.
void Trainer::SetBatch(TransformerStage::Pass pass) {
  device_.ops().Zero(sums_);
  for (const std::unique_ptr<TransformerStage>& stage : stages_) {
    stage->SetBatch(pass, tokens_, targets_, sums_.Rows(0, kHeadSums));
  }
}

// A kernel that a library loads at its first launch may wait for all that is under way on its card.
// With messages among it two cards could wait for each other, where ranks have several chunks:
// under INTERLEAVED (docs/schedules.md). Products of experts have new shapes in any step: they
// cannot be rehearsed.
void Trainer::Rehearse() {
  const bool on_network = grid_.path() == TensorPath::kNetwork;
  if (!on_network || pipeline_.chunks == 1 || job_.model().has_moe()) return;
  const ActivityScope doing("rehearsal of the first step");
  SetBatch(TransformerStage::Pass::kTraining);
  parameters_.ClearGradients(device_.ops());
  context_.observer = nullptr;  // or gradients that are complete would be summed over the ranks
  engine_->Rehearse();
  context_.observer = this;
}

void Trainer::Run(TransformerStage::Pass pass, const Program& program, SpanObserver& observer) {
  SetBatch(pass);
  engine_->Run(program, observer, [&](int stage) {
    optimizer_.StartReduce(stages_[static_cast<size_t>(pipeline_.ChunkOf(stage))]->parameters());
  });
}

// On every rank. The head's sums are the last stages', one of each data and context rank; the
// router's are over all replicas already, one of each stage. Each addend comes from one tensor rank
// alone and zeros from all others, so the bits depend on the replicas only.
absl::Span<const double> Trainer::SumLosses() {
  device_.CopyOut(host_sums_.data(), sums_);
  double* const router_begin = host_sums_.begin() + kHeadSums;
  const GridCoordinates at = grid_.at();
  const bool first = at.tensor == 0;
  if (!first || stages_.back()->has_next()) std::fill(host_sums_.begin(), router_begin, 0.0);
  if (!first || at.context > 0 || at.data > 0) {
    std::fill(router_begin, host_sums_.end(), 0.0);
  }
  AllReduceValues(grid_.world(), absl::MakeSpan(host_sums_), Reduction::kSum);
  return host_sums_;
}

void Trainer::AddRouterLosses(absl::Span<const double> router_sums, StepResult* result) {
  const MoeSpec& moe = job_.model().moe();
  const size_t of_layer = static_cast<size_t>(RouterSumsOfLayer(job_.model()));
  std::fill(expert_tokens_.begin(), expert_tokens_.end(), 0);
  double most_loaded = 0;  // tokens
  // Layer by layer, whatever stage they are on: the pipeline does not change a bit of the sums.
  for (size_t begin = 0; begin < router_sums.size(); begin += of_layer) {
    const absl::Span<const double> layer = router_sums.subspan(begin, of_layer);
    result->load_balance += layer[0];
    result->router_z += layer[1];
    const absl::Span<const double> loads = layer.subspan(2);
    for (size_t e = 0; e < loads.size(); ++e) expert_tokens_[e] += std::llround(loads[e]);
    most_loaded = std::max(most_loaded, *std::max_element(loads.begin(), loads.end()));
  }
  const double micro_batches = static_cast<double>(micro_batches_ * job_.model().layers());
  result->load_balance /= micro_batches;
  result->router_z /= micro_batches;
  result->loss += moe.load_balance() * result->load_balance + moe.router_z() * result->router_z;
  const int64_t tokens = job_.train().global_batch() * job_.model().sequence();
  result->expert_imbalance =
      most_loaded * static_cast<double>(moe.experts()) / static_cast<double>(tokens * moe.top_k());
}

void Trainer::ValuesNeeded(Range parameters) {
  if (optimizer_.HasValues(parameters)) return;
  const ObservedSpan span(*observer_, {SpanKind::kParameterGather, "gather"});
  optimizer_.WaitForValues(parameters);
}

void Trainer::GradientsReady(Range parameters) { optimizer_.StartReduce(parameters); }

// Gradients and sums_ of the batch that is loaded. Where steps may be replayed the host has no part
// in it but to issue the same work in every step.
void Trainer::ComputeGradients() {
  if (!prepared_) Rehearse();
  parameters_.ClearGradients(device_.ops());
  const ObservedSpan span(*observer_, {SpanKind::kPipeline, "pipeline"});
  Run(TransformerStage::Pass::kTraining, training_, *observer_);
  optimizer_.StartReduceTied();
  const ObservedSpan waiting(*observer_, {SpanKind::kGradientReduction, "reduce"});
  optimizer_.WaitForReductions();
  prepared_ = true;
}

// The same from a recording, which the first step that may be one makes. It waits for nothing that
// was issued before it: values that are still on their way are awaited first. False: the device has
// done nothing.
bool Trainer::ReplayGradients() {
  if (!replay_.has_value() || !prepared_ || observer_ != &nobody_) return false;
  optimizer_.WaitForValues({0, parameters_.size()});
  if (!replay_->Run([this] { ComputeGradients(); })) {
    replay_.reset();
    optimizer_.ForgetReductions();
    return false;
  }
  optimizer_.NoteReductions();
  ++replayed_steps_;
  return true;
}

StepResult Trainer::Step(int64_t update, double learning_rate, bool stop_requested) {
  const ObservedSpan step(*observer_, {SpanKind::kStep, "step"});
  LoadBatch();
  if (!ReplayGradients()) ComputeGradients();
  StepResult result = Measure(stop_requested);
  if (!result.finite) return result;
  const ObservedSpan span(*observer_, {SpanKind::kOptimizer, "optimizer"});
  optimizer_.Step(update, learning_rate, result.gradient_norm);
  return result;
}

StepResult Trainer::Measure(bool stop_requested) {
  const ObservedSpan span(*observer_, {SpanKind::kNorm, "norm"});
  const absl::Span<const double> sums = SumLosses();
  const double targets = static_cast<double>(job_.train().global_batch() * job_.model().sequence());
  StepResult result = {.cross_entropy = sums[0] / targets};
  result.loss = result.cross_entropy + job_.train().z_loss() * sums[1] / targets;
  if (job_.model().has_moe()) AddRouterLosses(sums.subspan(kHeadSums), &result);
  result.gradient_norm = optimizer_.GradientNorm();
  result.finite = std::isfinite(result.loss) && std::isfinite(result.gradient_norm);
  for (double* value : {&result.loss, &result.cross_entropy, &result.gradient_norm}) {
    if (std::isnan(*value)) *value = std::abs(*value);  // or it may be printed as -nan
  }
  result.stop = AnyRank(grid_.world(), stop_requested);
  return result;
}

double Trainer::EvaluationLoss() {
  ActivityScope doing("evaluation");
  LoadBatch();
  Run(TransformerStage::Pass::kEvaluation, forward_only_, nobody_);
  return SumLosses()[0];
}

std::vector<float> Trainer::NextTokenLogits(const std::vector<int32_t>& tokens, int64_t row) {
  ActivityScope doing("generation");
  const SequenceShard shard = context_.shard();
  for (int64_t n = 0; n < context_.tokens(); ++n) {
    const int64_t b = n / shard.tokens(), position = shard.Position(n % shard.tokens());
    batch_.tokens[static_cast<size_t>(n)] =
        tokens.at(static_cast<size_t>(b * shard.sequence + position));
  }
  // Every context rank computes its row of this index; the owner's is the one that was asked for.
  const SequenceShard::Place place = shard.PlaceOf(row % shard.sequence);
  stages_.back()->SetNextToken(row / shard.sequence * shard.tokens() + place.index, logits_);
  LoadBatch();
  Run(TransformerStage::Pass::kNextToken, forward_only_, nobody_);
  grid_.pipeline().Broadcast(logits_, grid_.pipeline().size() - 1);
  grid_.context().Broadcast(logits_, place.rank);
  std::vector<float> logits(static_cast<size_t>(logits_.elements()));
  device_.CopyOut(logits.data(), logits_);
  return logits;
}

}  // namespace twinstream
