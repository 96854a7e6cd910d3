#include "parallel/pipeline_engine.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace twinstream {
namespace {

// The neighbours that any of a rank's stages has. A slot has boundary tensors for these, in the
// same places for all of its stages: what one stage sends is safe from another's other tensors.
struct Neighbours {
  explicit Neighbours(absl::Span<const Stage* const> stages) {
    for (const Stage* stage : stages) {
      previous |= stage->has_previous();
      next |= stage->has_next();
    }
  }
  bool previous = false, next = false;
};

// Boundary tensors in the order in which LayOut hands them out, then the saved ones.
std::vector<TensorSpec> SpecsOf(const Stage& stage, const Neighbours& neighbours) {
  std::vector<TensorSpec> specs;
  const int boundary_tensors = 2 * (neighbours.previous + neighbours.next);
  specs.assign(static_cast<size_t>(boundary_tensors), stage.BoundarySpec());
  for (const TensorSpec& spec : stage.SavedSpecs()) specs.push_back(spec);
  return specs;
}

Slot LayOut(const Stage& stage, const Neighbours& neighbours, std::byte* memory) {
  const std::vector<Tensor> tensors = TensorsIn(memory, SpecsOf(stage, neighbours));
  auto next = tensors.begin();
  Slot slot;
  if (neighbours.previous) {
    slot.input = *next++;
    slot.d_input = *next++;
  }
  if (neighbours.next) {
    slot.output = *next++;
    slot.d_output = *next++;
  }
  if (!stage.has_previous()) slot.input = slot.d_input = Tensor();
  if (!stage.has_next()) slot.output = slot.d_output = Tensor();
  slot.saved.assign(next, tensors.end());
  return slot;
}

// Chunks of one rank take turns in a slot, so it has room for the largest.
int64_t BytesOfOneSlot(absl::Span<const Stage* const> stages) {
  const Neighbours neighbours(stages);
  int64_t bytes = 0;
  for (const Stage* stage : stages) bytes = std::max(bytes, BytesFor(SpecsOf(*stage, neighbours)));
  return bytes;
}

// Completed by the micro-batch, or the stage.
const char* ActivityOf(PipelineOp op) {
  switch (op) {
    case PipelineOp::kForward:
      return "forward of micro-batch";
    case PipelineOp::kBackwardInput:
      return "backward (inputs) of micro-batch";
    case PipelineOp::kBackwardWeight:
      return "backward (weights) of micro-batch";
    case PipelineOp::kSendActivation:
      return "sending activations of micro-batch";
    case PipelineOp::kReceiveActivation:
      return "receiving activations of micro-batch";
    case PipelineOp::kSendGradient:
      return "sending gradients of micro-batch";
    case PipelineOp::kReceiveGradient:
      return "receiving gradients of micro-batch";
    case PipelineOp::kReduceGradients:
      return "reduction of the gradients of stage";
  }
  Die("unknown pipeline operation");
}

SpanKind KindOf(PipelineOp op) {
  switch (op) {
    case PipelineOp::kForward:
      return SpanKind::kForward;
    case PipelineOp::kBackwardInput:
      return SpanKind::kInputGradient;
    case PipelineOp::kBackwardWeight:
      return SpanKind::kWeightGradient;
    case PipelineOp::kSendActivation:
    case PipelineOp::kSendGradient:
      return SpanKind::kSend;
    case PipelineOp::kReceiveActivation:
    case PipelineOp::kReceiveGradient:
      return SpanKind::kReceive;
    case PipelineOp::kReduceGradients:
      return SpanKind::kGradientReduction;
  }
  Die("unknown pipeline operation");
}

Span SpanOf(const Instruction& instruction) {
  const bool reduction = instruction.op == PipelineOp::kReduceGradients;
  return {.kind = KindOf(instruction.op),
          .name = NameOf(instruction.op),
          .stage = instruction.stage,
          .micro_batch = reduction ? -1 : instruction.micro_batch};
}

}  // namespace

PipelineEngine::PipelineEngine(std::vector<Stage*> stages, const PipelineShape& shape,
                               Communicator& pipeline, Device& device, int peak_slots,
                               CommunicationThread* overlap)
    : stages_(std::move(stages)),
      shape_(shape),
      pipeline_(pipeline),
      overlap_(overlap),
      storage_(device, SlotBytes(stages_, peak_slots)),
      slots_(static_cast<size_t>(peak_slots)) {
  Check(pipeline.size() == shape.ranks, "a pipeline of %d ranks over a communicator of %d",
        shape.ranks, pipeline.size());
  Check(stages_.size() == static_cast<size_t>(shape.chunks), "%d stages for %d chunks",
        stages_.size(), shape.chunks);
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    const int number = chunk * shape.ranks + pipeline.rank();
    const Stage& stage = *stages_[static_cast<size_t>(chunk)];
    Check(stage.has_previous() == (number > 0) && stage.has_next() == (number < shape.stages() - 1),
          "stage %d of %d has other neighbours than the schedule's", number, shape.stages());
  }
  const Neighbours neighbours(stages_);
  const int64_t slot_bytes = BytesOfOneSlot(stages_);
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    std::byte* memory = storage_.data() + static_cast<int64_t>(slot) * slot_bytes;
    for (const Stage* stage : stages_) {
      slots_[slot].by_chunk.push_back(LayOut(*stage, neighbours, memory));
    }
  }
}

int64_t PipelineEngine::SlotBytes(absl::Span<const Stage* const> stages, int peak_slots) {
  return peak_slots * BytesOfOneSlot(stages);
}

void PipelineEngine::Run(const Program& program, SpanObserver& observer,
                         absl::FunctionRef<void(int stage)> reduce) {
  if (overlap_ != nullptr) FindReceiveStarts(program, &receive_starts_);
  auto start = receive_starts_.begin();
  for (size_t index = 0; index < program.size(); ++index) {
    for (; start != receive_starts_.end() && start->before <= index; ++start) {
      StartReceive(program[start->receive]);
    }
    const Instruction& instruction = program[index];
    const bool reduction = instruction.op == PipelineOp::kReduceGradients;
    const ActivityScope doing(ActivityOf(instruction.op),
                              reduction ? instruction.stage : instruction.micro_batch);
    // Before a backward this costs nothing: the gradient's arrival shows that the activation left.
    SlotState& state = StateOf(instruction);
    if (OverwritesOutput(instruction.op)) WaitFor(state.output, observer);
    if (OverwritesInputGradient(instruction.op)) WaitFor(state.input_gradient, observer);
    const ObservedSpan span(observer, SpanOf(instruction));
    Execute(instruction, state, reduce);
  }
  const ActivityScope doing("waiting for the last messages of the pipeline to leave");
  for (SlotState& state : slots_) {
    WaitFor(state.output, observer);
    WaitFor(state.input_gradient, observer);
  }
}

void PipelineEngine::Rehearse() {
  for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
    Stage& stage = *stages_[static_cast<size_t>(chunk)];
    Slot& slot = slots_[0].by_chunk[static_cast<size_t>(chunk)];
    for (int micro_batch = 0; micro_batch < std::min(2, shape_.micro_batches); ++micro_batch) {
      stage.Forward(micro_batch, slot);
      stage.BackwardInput(micro_batch, slot);
      stage.BackwardWeight(micro_batch, slot);
    }
  }
}

void PipelineEngine::Execute(const Instruction& instruction, SlotState& state,
                             absl::FunctionRef<void(int stage)> reduce) {
  const auto [op, stage_number, micro_batch, slot_number] = instruction;
  const int chunk = shape_.ChunkOf(stage_number);
  Stage& stage = *stages_[static_cast<size_t>(chunk)];
  Slot& slot = state.by_chunk[static_cast<size_t>(chunk)];
  const int previous = shape_.RankOf(stage_number - 1);  // used where there is one
  const int next = shape_.RankOf(stage_number + 1);

  switch (op) {
    case PipelineOp::kReceiveActivation:
      return Receive(state.input, slot.input, previous, Channel::kActivation);
    case PipelineOp::kForward:
      return stage.Forward(micro_batch, slot);
    case PipelineOp::kSendActivation:
      state.output = {pipeline_.Send(slot.output, next, Channel::kActivation), instruction};
      return KeepMoving();
    case PipelineOp::kReceiveGradient:
      return Receive(state.output_gradient, slot.d_output, next, Channel::kGradient);
    case PipelineOp::kBackwardInput:
      return stage.BackwardInput(micro_batch, slot);
    case PipelineOp::kSendGradient:
      state.input_gradient = {pipeline_.Send(slot.d_input, previous, Channel::kGradient),
                              instruction};
      return KeepMoving();
    case PipelineOp::kBackwardWeight:
      return stage.BackwardWeight(micro_batch, slot);
    case PipelineOp::kReduceGradients:
      return reduce(stage_number);
  }
}

PipelineEngine::SlotState& PipelineEngine::StateOf(const Instruction& instruction) {
  peak_slots_seen_ = std::max(peak_slots_seen_, instruction.slot + 1);
  Check(peak_slots_seen_ <= static_cast<int>(slots_.size()),
        "%s wants slot %d; the schedule's check promised at most %d", ToText(instruction),
        instruction.slot, slots_.size());
  return slots_[static_cast<size_t>(instruction.slot)];
}

void PipelineEngine::StartReceive(const Instruction& receive) {
  SlotState& state = StateOf(receive);
  Slot& slot = state.by_chunk[static_cast<size_t>(shape_.ChunkOf(receive.stage))];
  if (receive.op == PipelineOp::kReceiveActivation) {
    state.input =
        pipeline_.StartReceive(slot.input, shape_.RankOf(receive.stage - 1), Channel::kActivation);
  } else {
    state.output_gradient =
        pipeline_.StartReceive(slot.d_output, shape_.RankOf(receive.stage + 1), Channel::kGradient);
  }
  KeepMoving();
}

void PipelineEngine::Receive(std::optional<Ticket>& started, Tensor to, int from, Channel channel) {
  if (!started.has_value()) return pipeline_.Receive(to, from, channel);
  pipeline_.Wait(*started);
  started.reset();
}

void PipelineEngine::KeepMoving() {
  if (overlap_ != nullptr) overlap_->KeepMoving();
}

void PipelineEngine::WaitFor(std::optional<Sent>& sent, SpanObserver& observer) {
  if (!sent.has_value()) return;
  Span waiting = SpanOf(sent->send);
  waiting.name = "wait";
  const ObservedSpan span(observer, waiting);
  pipeline_.Wait(sent->ticket);
  sent.reset();
}

}  // namespace twinstream
