#include "parallel/receive_starts.h"

#include <algorithm>
#include <tuple>

#include "absl/container/inlined_vector.h"

namespace twinstream {
namespace {

bool IsReceive(PipelineOp op) {
  return op == PipelineOp::kReceiveActivation || op == PipelineOp::kReceiveGradient;
}

// Who has a slot, and since when.
struct Tenancy {
  int stage = -1, micro_batch = -1;
  size_t begin = 0;  // behind the last instruction of whoever had it before
  size_t end = 0;    // behind the last instruction so far

  void Extend(const Instruction& instruction, size_t index) {
    if (instruction.stage != stage || instruction.micro_batch != micro_batch) {
      stage = instruction.stage;
      micro_batch = instruction.micro_batch;
      begin = end;
    }
    end = index + 1;
  }
};

}  // namespace

void FindReceiveStarts(const Program& program, std::vector<ReceiveStart>* starts) {
  starts->clear();
  absl::InlinedVector<Tenancy, 64> slots;
  size_t last_activation = 0, last_gradient = 0;  // where the latest of each kind starts
  for (size_t index = 0; index < program.size(); ++index) {
    const Instruction& instruction = program[index];
    if (instruction.op == PipelineOp::kReduceGradients) continue;
    const size_t slot = static_cast<size_t>(instruction.slot);
    if (slot >= slots.size()) slots.resize(slot + 1);
    slots[slot].Extend(instruction, index);
    if (!IsReceive(instruction.op)) continue;
    size_t& last =
        instruction.op == PipelineOp::kReceiveActivation ? last_activation : last_gradient;
    last = std::max(last, slots[slot].begin);
    starts->push_back({.before = last, .receive = index});
  }
  std::sort(starts->begin(), starts->end(), [](const ReceiveStart& a, const ReceiveStart& b) {
    return std::tie(a.before, a.receive) < std::tie(b.before, b.receive);
  });
}

}  // namespace twinstream
