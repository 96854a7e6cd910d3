// Lowering: what a rank must do besides computing follows from its own compute instructions alone.
#include <algorithm>

#include "core/check.h"
#include "parallel/schedule.h"

namespace twinstream {
namespace {

// Messages around each compute instruction and the reduction behind a stage's last W; slots are 0.
Program InsertMessages(const Program& compute, int last_stage, int micro_batches) {
  Program program;
  for (const Instruction& instruction : compute) {
    const auto [op, stage, micro_batch, slot] = instruction;
    const auto add = [&, s = stage, m = micro_batch](PipelineOp added) {
      program.push_back({added, s, m});
    };
    const bool has_previous = stage > 0;
    const bool has_next = stage < last_stage;
    switch (op) {
      case PipelineOp::kForward:
        if (has_previous) add(PipelineOp::kReceiveActivation);
        add(op);
        if (has_next) add(PipelineOp::kSendActivation);
        break;
      case PipelineOp::kBackwardInput:
        if (has_next) add(PipelineOp::kReceiveGradient);
        add(op);
        if (has_previous) add(PipelineOp::kSendGradient);
        break;
      case PipelineOp::kBackwardWeight:
        add(op);
        if (micro_batch == micro_batches - 1) {  // the last: W runs in ascending order
          program.push_back({PipelineOp::kReduceGradients, stage});
        }
        break;
      case PipelineOp::kSendActivation:
      case PipelineOp::kReceiveActivation:
      case PipelineOp::kSendGradient:
      case PipelineOp::kReceiveGradient:
      case PipelineOp::kReduceGradients:
        Die("lowering takes compute instructions only");
    }
  }
  return program;
}

// A micro-batch holds the lowest free slot from its first instruction on a stage to its last.
void AssignSlots(Program& program, int micro_batches) {
  const auto number = [micro_batches](const Instruction& instruction) {
    return static_cast<size_t>(instruction.stage) * micro_batches + instruction.micro_batch;
  };
  std::vector<size_t> last;  // by number
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].op == PipelineOp::kReduceGradients) continue;
    last.resize(std::max(last.size(), number(program[i]) + 1));
    last[number(program[i])] = i;
  }
  constexpr size_t kFree = static_cast<size_t>(-1);
  std::vector<size_t> user;  // of each slot: a number, or kFree
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].op == PipelineOp::kReduceGradients) continue;
    auto slot = std::find(user.begin(), user.end(), number(program[i]));
    if (slot == user.end()) slot = std::find(user.begin(), user.end(), kFree);
    if (slot == user.end()) slot = user.insert(user.end(), kFree);
    *slot = last[number(program[i])] == i ? kFree : number(program[i]);
    program[i].slot = static_cast<int>(slot - user.begin());
  }
}

}  // namespace

std::vector<Program> LowerSchedule(const std::vector<Program>& compute,
                                   const PipelineShape& shape) {
  std::vector<Program> programs;
  for (const Program& rank_compute : compute) {
    programs.push_back(InsertMessages(rank_compute, shape.stages() - 1, shape.micro_batches));
    AssignSlots(programs.back(), shape.micro_batches);
  }
  return programs;
}

}  // namespace twinstream
