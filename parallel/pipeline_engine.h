// PipelineEngine: runs one rank's Program over its stages: a loop and one switch. Owns the slots'
// memory.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/device.h"
#include "parallel/communicator.h"
#include "parallel/schedule.h"
#include "parallel/span.h"
#include "parallel/stage.h"

namespace twinstream {

class PipelineEngine {
 public:
  // stages: this rank's chunks in order; they, `pipeline` (whose ranks are the pipeline's) and
  // `device` outlive the engine. peak_slots: of this rank, from CheckSchedule, the largest of all
  // programs to be run; the engine dies if a program uses more. Allocates all slots.
  PipelineEngine(std::vector<Stage*> stages, const PipelineShape& shape, Communicator& pipeline,
                 Device& device, int peak_slots);

  // Bytes that the constructor allocates for such a rank.
  static int64_t SlotBytes(absl::Span<const Stage* const> stages, int peak_slots);

  // A checked program of this rank. `reduce(stage)` is called at kReduceGradients. On return all
  // messages have left. The observer is told of every instruction, and of waiting for sends.
  void Run(const Program& program, SpanObserver& observer,
           absl::FunctionRef<void(int stage)> reduce);

  // Slots used by the programs run so far.
  int peak_slots_seen() const { return peak_slots_seen_; }

 private:
  // One slot's memory, as each of the rank's chunks lays it out, and the sends that still read it.
  struct Sent {
    Ticket ticket;
    Instruction send;
  };
  struct SlotState {
    std::vector<Slot> by_chunk;
    std::optional<Sent> output, input_gradient;  // of messages under way
  };

  SlotState& StateOf(const Instruction& instruction);
  void Execute(const Instruction& instruction, SlotState& state,
               absl::FunctionRef<void(int stage)> reduce);
  void WaitFor(std::optional<Sent>& sent, SpanObserver& observer);

  const std::vector<Stage*> stages_;
  const PipelineShape shape_;
  Communicator& pipeline_;
  Storage storage_;
  std::vector<SlotState> slots_;
  int peak_slots_seen_ = 0;
};

}  // namespace twinstream
