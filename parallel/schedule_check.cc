// The proof of a set of programs: first each rank by itself, then all of them by simulation.
#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "parallel/schedule.h"

namespace twinstream {
namespace {

using Operations = unsigned;  // a set of PipelineOp
constexpr Operations Bit(PipelineOp op) { return 1u << static_cast<unsigned>(op); }

constexpr Operations kCompute =
    Bit(PipelineOp::kForward) | Bit(PipelineOp::kBackwardInput) | Bit(PipelineOp::kBackwardWeight);
constexpr Operations kBackward = Bit(PipelineOp::kBackwardInput) |
                                 Bit(PipelineOp::kBackwardWeight) | Bit(PipelineOp::kSendGradient) |
                                 Bit(PipelineOp::kReceiveGradient);

bool In(PipelineOp op, Operations set) { return (Bit(op) & set) != 0; }
bool IsReceive(PipelineOp op) {
  return op == PipelineOp::kReceiveActivation || op == PipelineOp::kReceiveGradient;
}

absl::Status Broken(absl::string_view rule, int rank, const Program& program, size_t index,
                    absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrFormat("rank %d, instruction %d (%s) breaks rule \"%s\": %s", rank, index,
                      ToText(program[index]), rule, why));
}

// What one micro-batch goes through on a stage.
Operations Expected(int stage, const PipelineShape& shape, bool training) {
  Operations set = Bit(PipelineOp::kForward);
  if (stage > 0) set |= Bit(PipelineOp::kReceiveActivation);
  if (stage < shape.stages() - 1) set |= Bit(PipelineOp::kSendActivation);
  if (!training) return set;
  set |= Bit(PipelineOp::kBackwardInput) | Bit(PipelineOp::kBackwardWeight);
  if (stage > 0) set |= Bit(PipelineOp::kSendGradient);
  if (stage < shape.stages() - 1) set |= Bit(PipelineOp::kReceiveGradient);
  return set;
}

// What must have gone before on the same stage and micro-batch, as far as it is expected there.
Operations Needed(PipelineOp op) {
  switch (op) {
    case PipelineOp::kReceiveActivation:
    case PipelineOp::kReduceGradients:
      return 0;
    case PipelineOp::kForward:
      return Bit(PipelineOp::kReceiveActivation);
    case PipelineOp::kSendActivation:
      return Bit(PipelineOp::kForward);
    case PipelineOp::kReceiveGradient:
      return Bit(PipelineOp::kSendActivation);
    case PipelineOp::kBackwardInput:
      return Bit(PipelineOp::kForward) | Bit(PipelineOp::kReceiveGradient);
    case PipelineOp::kSendGradient:
    case PipelineOp::kBackwardWeight:
      return Bit(PipelineOp::kBackwardInput);
  }
  Die("unknown pipeline operation");
}

// Walks one rank's program and keeps what each (stage, micro-batch) has done: every rule but fifo
// and never stuck.
class RankCheck {
 public:
  RankCheck(const Program& program, int rank, const PipelineShape& shape, bool training)
      : program_(program),
        rank_(rank),
        shape_(shape),
        training_(training),
        done_(static_cast<size_t>(shape.stages() * shape.micro_batches)),
        reduced_(static_cast<size_t>(shape.stages())) {}

  absl::Status Run() {
    for (size_t index = 0; index < program_.size(); ++index) {
      const bool reduction = program_[index].op == PipelineOp::kReduceGradients;
      const absl::Status status = reduction ? Reduction(index) : Step(index);
      if (!status.ok()) return status;
    }
    return Complete();
  }

  int peak_slots() const { return static_cast<int>(user_.size()); }

 private:
  static constexpr int kNobody = -1;

  size_t NumberOf(int stage, int micro_batch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(shape_.micro_batches) +
           static_cast<size_t>(micro_batch);
  }
  absl::Status Broken(absl::string_view rule, size_t index, absl::string_view why) const {
    return twinstream::Broken(rule, rank_, program_, index, why);
  }
  bool IsHere(int stage) const {
    return 0 <= stage && stage < shape_.stages() && shape_.RankOf(stage) == rank_;
  }

  absl::Status Step(size_t index) {
    const auto [op, stage, micro_batch, slot] = program_[index];
    if (!IsHere(stage)) return Broken("placement", index, "the stage is not on this rank");
    if (micro_batch < 0 || micro_batch >= shape_.micro_batches || slot < 0) {
      return Broken("placement", index, "there is no such micro-batch or slot");
    }
    const Operations expected = Expected(stage, shape_, training_);
    Operations& done = done_[NumberOf(stage, micro_batch)];
    if (!In(op, expected)) return Broken("placement", index, "the stage has no such neighbour");
    if (In(op, done)) return Broken("once", index, "it ran before");
    if ((Needed(op) & expected & ~done) != 0) {
      return Broken("dependency", index, "what it needs has not run before it");
    }
    done |= Bit(op);
    const absl::Status order = Ascending(index);
    return order.ok() ? UseSlot(index, done == expected) : order;
  }

  // Losses add up in F and gradients in W; their order decides the last bits.
  absl::Status Ascending(size_t index) {
    const auto [op, stage, micro_batch, slot] = program_[index];
    if (!In(op, kCompute)) return absl::OkStatus();
    int& next = next_[{op, stage}];
    if (micro_batch < next) return Broken("ascending", index, "a later micro-batch ran before it");
    next = micro_batch + 1;
    return absl::OkStatus();
  }

  absl::Status UseSlot(size_t index, bool last_use) {
    const Instruction& instruction = program_[index];
    const int self = static_cast<int>(NumberOf(instruction.stage, instruction.micro_batch));
    const size_t slot = static_cast<size_t>(instruction.slot);
    if (slot >= user_.size()) user_.resize(slot + 1, kNobody);
    const auto own = std::find(user_.begin(), user_.end(), self);
    if (user_[slot] == kNobody && own == user_.end()) user_[slot] = self;
    if (user_[slot] != self) {
      return Broken("exclusive", index,
                    absl::StrCat("slot ", slot, " is not this micro-batch's now"));
    }
    if (last_use) user_[slot] = kNobody;
    return absl::OkStatus();
  }

  absl::Status Reduction(size_t index) {
    const int stage = program_[index].stage;
    if (!IsHere(stage)) return Broken("placement", index, "the stage is not on this rank");
    if (reduced_[static_cast<size_t>(stage)]) return Broken("once", index, "it ran before");
    for (int micro_batch = 0; micro_batch < shape_.micro_batches; ++micro_batch) {
      if (!In(PipelineOp::kBackwardWeight, done_[NumberOf(stage, micro_batch)])) {
        return Broken("dependency", index,
                      absl::StrCat("W of micro-batch ", micro_batch, " has not run before it"));
      }
    }
    reduced_[static_cast<size_t>(stage)] = true;
    return absl::OkStatus();
  }

  absl::Status Complete() const {
    const auto missing = [this](int stage, absl::string_view what) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "rank %d breaks rule \"complete\": stage %d lacks %s", rank_, stage, what));
    };
    for (int stage = rank_; stage < shape_.stages(); stage += shape_.ranks) {
      for (int micro_batch = 0; micro_batch < shape_.micro_batches; ++micro_batch) {
        if (done_[NumberOf(stage, micro_batch)] != Expected(stage, shape_, training_)) {
          return missing(stage, absl::StrCat("a part of micro-batch ", micro_batch));
        }
      }
      if (training_ && !reduced_[static_cast<size_t>(stage)]) {
        return missing(stage, "the reduction of its gradients");
      }
    }
    return absl::OkStatus();
  }

  const Program& program_;
  const int rank_;
  const PipelineShape& shape_;
  const bool training_;
  std::vector<Operations> done_;                    // by NumberOf
  std::vector<bool> reduced_;                       // by stage
  std::vector<int> user_;                           // of each slot: a NumberOf, or kNobody
  std::map<std::pair<PipelineOp, int>, int> next_;  // least micro-batch allowed, by (op, stage)
};

// Runs all programs at once, in units of time. A rank stops where the engine would wait: at a
// receive whose message was not sent, and at an instruction that overwrites what a send of its slot
// reads while that send has not met its receive.
class Simulation {
 public:
  Simulation(const std::vector<Program>& programs, const PipelineShape& shape)
      : programs_(programs), shape_(shape), ranks_(programs.size()) {}

  absl::Status Run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int rank = 0; rank < shape_.ranks; ++rank) {
        while (at(rank).next < program(rank).size() && Ready(rank)) {
          if (absl::Status status = Execute(rank); !status.ok()) return status;
          progress = true;
        }
      }
    }
    return Finished();
  }

  double Bubble() const {
    double end = 0, busy = 0;
    for (const Rank& rank : ranks_) {
      end = std::max(end, rank.clock);
      busy += rank.busy;
    }
    return end == 0 ? 0 : 1 - busy / (end * static_cast<double>(ranks_.size()));
  }

 private:
  static constexpr double kNotYet = -1;
  static constexpr size_t kNone = static_cast<size_t>(-1);

  struct Message {
    int stage, micro_batch;     // of the sender
    double sent;                // time
    double received = kNotYet;  // time
  };
  struct Queue {
    std::vector<size_t> messages;  // in the order of sending
    size_t next = 0;               // the one to be received next
  };
  struct Sends {
    size_t activation = kNone, gradient = kNone;  // messages that read the slot's buffers
  };
  struct Rank {
    size_t next = 0;  // instruction
    double clock = 0, busy = 0;
    std::map<int, Sends> sends;  // by slot
  };

  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  const Program& program(int rank) const { return programs_[static_cast<size_t>(rank)]; }

  // The queue of messages of this kind between two stages' ranks.
  Queue& QueueOf(int from_stage, int to_stage) {
    return queues_[{shape_.RankOf(from_stage), shape_.RankOf(to_stage), from_stage < to_stage}];
  }
  Queue& Incoming(const Instruction& receive) {
    const bool activation = receive.op == PipelineOp::kReceiveActivation;
    return QueueOf(activation ? receive.stage - 1 : receive.stage + 1, receive.stage);
  }

  // Messages whose send must have met its receive before `instruction` runs.
  std::vector<size_t> AwaitedSends(int rank, const Instruction& instruction) {
    std::vector<size_t> awaited;
    if (instruction.op == PipelineOp::kReduceGradients) return awaited;
    const Sends& sends = at(rank).sends[instruction.slot];
    if (OverwritesOutput(instruction.op) && sends.activation != kNone) {
      awaited.push_back(sends.activation);
    }
    if (OverwritesInputGradient(instruction.op) && sends.gradient != kNone) {
      awaited.push_back(sends.gradient);
    }
    return awaited;
  }

  bool Ready(int rank) {
    const Instruction& instruction = program(rank)[at(rank).next];
    for (size_t message : AwaitedSends(rank, instruction)) {
      if (messages_[message].received == kNotYet) return false;
    }
    if (!IsReceive(instruction.op)) return true;
    const Queue& queue = Incoming(instruction);
    return queue.next < queue.messages.size();
  }

  absl::Status Execute(int rank) {
    Rank& self = at(rank);
    const size_t index = self.next++;
    const Instruction& instruction = program(rank)[index];
    for (size_t message : AwaitedSends(rank, instruction)) {
      self.clock = std::max(self.clock, messages_[message].received);
    }
    const auto send = [&](int to_stage) {
      QueueOf(instruction.stage, to_stage).messages.push_back(messages_.size());
      messages_.push_back({instruction.stage, instruction.micro_batch, self.clock});
      return messages_.size() - 1;
    };
    if (In(instruction.op, kCompute)) {
      self.clock += 1;
      self.busy += 1;
    } else if (instruction.op == PipelineOp::kSendActivation) {
      self.sends[instruction.slot].activation = send(instruction.stage + 1);
    } else if (instruction.op == PipelineOp::kSendGradient) {
      self.sends[instruction.slot].gradient = send(instruction.stage - 1);
    } else if (IsReceive(instruction.op)) {
      return Receive(rank, index);
    }
    return absl::OkStatus();
  }

  absl::Status Receive(int rank, size_t index) {
    const Instruction& instruction = program(rank)[index];
    Queue& queue = Incoming(instruction);
    Message& message = messages_[queue.messages[queue.next++]];
    const int sender = instruction.op == PipelineOp::kReceiveActivation ? instruction.stage - 1
                                                                        : instruction.stage + 1;
    if (message.stage != sender || message.micro_batch != instruction.micro_batch) {
      return Broken("fifo", rank, program(rank), index,
                    absl::StrFormat("the next message is micro-batch %d of stage %d",
                                    message.micro_batch, message.stage));
    }
    at(rank).clock = std::max(at(rank).clock, message.sent);
    message.received = at(rank).clock;
    return absl::OkStatus();
  }

  absl::Status Finished() {
    std::vector<std::string> waiting;
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      const size_t next = at(rank).next;
      if (next == program(rank).size()) continue;
      waiting.push_back(absl::StrFormat("rank %d waits at instruction %d (%s)", rank, next,
                                        ToText(program(rank)[next])));
    }
    if (waiting.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("the programs break rule \"never stuck\": ", absl::StrJoin(waiting, ", ")));
  }

  const std::vector<Program>& programs_;
  const PipelineShape& shape_;
  std::vector<Rank> ranks_;
  std::vector<Message> messages_;
  std::map<std::tuple<int, int, bool>, Queue> queues_;  // (from rank, to rank, activation)
};

bool HasBackward(const std::vector<Program>& programs) {
  for (const Program& program : programs) {
    for (const Instruction& instruction : program) {
      if (In(instruction.op, kBackward)) return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<ScheduleReport> CheckSchedule(const std::vector<Program>& programs,
                                             const PipelineShape& shape) {
  if (programs.size() != static_cast<size_t>(shape.ranks)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d programs for %d ranks", programs.size(), shape.ranks));
  }
  ScheduleReport report;
  const bool training = HasBackward(programs);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    RankCheck check(programs[static_cast<size_t>(rank)], rank, shape, training);
    if (absl::Status status = check.Run(); !status.ok()) return status;
    report.peak_slots.push_back(check.peak_slots());
  }
  Simulation simulation(programs, shape);
  if (absl::Status status = simulation.Run(); !status.ok()) return status;
  report.bubble = simulation.Bubble();
  return report;
}

}  // namespace twinstream
