// A pipeline schedule is a list of instructions per rank: generated (compute only), lowered
// (messages, slots, reduction), checked, printed, simulated, and then run by PipelineEngine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace twinstream {

enum class PipelineOp {
  kForward,            // F
  kBackwardInput,      // I: gradient of the stage's input
  kBackwardWeight,     // W: gradients of the stage's parameters
  kSendActivation,     // SA: to the next stage
  kReceiveActivation,  // RA: from the stage before
  kSendGradient,       // SG: to the stage before
  kReceiveGradient,    // RG: from the next stage
  kReduceGradients,    // R: this stage's gradients are complete
};

absl::string_view NameOf(PipelineOp op);  // "F", ..., "R"

struct Instruction {
  PipelineOp op;
  int stage = 0;        // 0 .. stages * virtual_stages - 1, over the whole model
  int micro_batch = 0;  // unused by kReduceGradients
  int slot = 0;         // memory of this micro-batch on this rank; assigned by lowering
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

using Program = std::vector<Instruction>;  // one rank's

struct PipelineShape {
  int ranks = 1;          // P
  int chunks = 1;         // V: virtual stages per rank
  int micro_batches = 1;  // M
  int stages() const { return ranks * chunks; }
  // Stage s lives on rank s % ranks, as its chunk s / ranks.
  int RankOf(int stage) const { return stage % ranks; }
  int ChunkOf(int stage) const { return stage / ranks; }
};

// Whether `op` writes the output, or the input's gradient, of its slot, which an earlier send of
// the slot may still read: the send must have left first. (A boundary tensor has the same place in
// a slot whichever stage uses it, and a stage's backward may scribble over its output.) The engine
// waits for sends exactly there, and CheckSchedule proves exactly that.
bool OverwritesOutput(PipelineOp op);
bool OverwritesInputGradient(PipelineOp op);

// Compute instructions of every rank in order: F, I and W only. Any number of micro-batches;
// several chunks where HasVirtualStages(schedule). In all schedules a stage sees the micro-batches
// in ascending order, so losses and weight gradients add up to the same bits whatever P.
std::vector<Program> GenerateSchedule(ParallelSpec::Schedule schedule, const PipelineShape& shape);
// Forward passes only (evaluation, generation).
std::vector<Program> GenerateForwardOnly(const PipelineShape& shape);

// Inserts a receive just before the first use, a send just after the producer, a reduction after a
// stage's last W, and assigns slots: lowest free one at F (or at RA), free again after W (forward
// only: after F, or SA). Looks at one rank at a time.
std::vector<Program> LowerSchedule(const std::vector<Program>& compute, const PipelineShape& shape);

struct ScheduleReport {
  std::vector<int> peak_slots;  // per rank: slots whose memory it needs
  double bubble = 0;            // share of (time x ranks) not computing, with unit costs F = I = W
};
// Proves these rules; an error names rank, instruction and rule:
//   placement    a rank runs its own stages, in slots from 0, and talks to neighbours that exist
//   once         nothing runs twice
//   dependency   inputs come first, within the rank
//   ascending    a stage's F, its I and its W each run the micro-batches in ascending order
//   exclusive    a slot belongs to one micro-batch from its first to its last instruction
//   complete     every stage does everything for every micro-batch, or forward passes only
//   fifo         messages of one kind between two ranks are received in the order they are sent
//   never stuck  even if a send lasts until its receive at each place where the engine waits for it
absl::StatusOr<ScheduleReport> CheckSchedule(const std::vector<Program>& programs,
                                             const PipelineShape& shape);

// "0F2 0SA2 1RG0 1I0 1W0 0R": stage, operation, micro-batch.
std::string ToText(const Instruction& instruction);
std::string ToText(const Program& program);
absl::StatusOr<Program> ProgramFromText(absl::string_view text);  // slots are 0

}  // namespace twinstream
