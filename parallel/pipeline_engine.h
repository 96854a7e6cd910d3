// PipelineEngine: runs one rank's Program over its stages: a loop and one switch. Owns the slots'
// memory. With a communication thread, messages move while the stages compute: receives start as
// soon as their memory is free, and sends are looked after.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/device.h"
#include "parallel/communication_thread.h"
#include "parallel/communicator.h"
#include "parallel/receive_starts.h"
#include "parallel/schedule.h"
#include "parallel/span.h"
#include "parallel/stage.h"

namespace twinstream {

class PipelineEngine {
 public:
  // stages: this rank's chunks in order; they, `pipeline` (whose ranks are the pipeline's) and
  // `device` outlive the engine. peak_slots: of this rank, from CheckSchedule, the largest of all
  // programs to be run; the engine dies if a program uses more. Allocates all slots. overlap: null
  // starts no receive early and moves no messages while this rank computes.
  PipelineEngine(std::vector<Stage*> stages, const PipelineShape& shape, Communicator& pipeline,
                 Device& device, int peak_slots, CommunicationThread* overlap = nullptr);

  // Bytes that the constructor allocates for such a rank.
  static int64_t SlotBytes(absl::Span<const Stage* const> stages, int peak_slots);

  // A checked program of this rank. `reduce(stage)` is called at kReduceGradients. On return all
  // messages have left. The observer is told of every instruction, and of waiting for sends.
  void Run(const Program& program, SpanObserver& observer,
           absl::FunctionRef<void(int stage)> reduce);
  // Before the first program: every stage's first two micro-batches (or one), forward and backward,
  // without messages, so that the device does what it does at the first call of an operation, or of
  // one that adds to its result, while no message is under way. The results are good for nothing.
  void Rehearse();

  // Slots used by the programs run so far.
  int peak_slots_seen() const { return peak_slots_seen_; }

 private:
  struct Sent {
    Ticket ticket;
    Instruction send;
  };
  // One slot's memory, as each of the rank's chunks lays it out, and the messages that still read
  // or write it.
  struct SlotState {
    std::vector<Slot> by_chunk;
    std::optional<Sent> output, input_gradient;    // of messages under way
    std::optional<Ticket> input, output_gradient;  // of receives that were started early
  };

  SlotState& StateOf(const Instruction& instruction);
  void Execute(const Instruction& instruction, SlotState& state,
               absl::FunctionRef<void(int stage)> reduce);
  void StartReceive(const Instruction& receive);
  void Receive(std::optional<Ticket>& started, Tensor to, int from, Channel channel);
  void KeepMoving();
  void WaitFor(std::optional<Sent>& sent, SpanObserver& observer);

  const std::vector<Stage*> stages_;
  const PipelineShape shape_;
  Communicator& pipeline_;
  CommunicationThread* const overlap_;
  Storage storage_;
  std::vector<SlotState> slots_;
  std::vector<ReceiveStart> receive_starts_;  // of the program under way; without overlap none
  int peak_slots_seen_ = 0;
};

}  // namespace twinstream
