#include "parallel/receive_starts.h"

#include <algorithm>
#include <map>

#include "gtest/gtest.h"
#include "proto/layout_rules.h"

namespace twinstream {
namespace {

bool IsReceive(const Instruction& instruction) {
  return instruction.op == PipelineOp::kReceiveActivation ||
         instruction.op == PipelineOp::kReceiveGradient;
}

bool Shares(const Instruction& a, const Instruction& b) {
  return a.op != PipelineOp::kReduceGradients && b.op != PipelineOp::kReduceGradients &&
         a.slot == b.slot;
}
bool SameUser(const Instruction& a, const Instruction& b) {
  return a.stage == b.stage && a.micro_batch == b.micro_batch;
}

// Every rule of the header for one rank's program.
void ExpectEarliest(const Program& program) {
  std::vector<ReceiveStart> starts;
  FindReceiveStarts(program, &starts);
  std::vector<size_t> started;
  std::map<PipelineOp, ReceiveStart> last;  // of each kind
  for (const auto& [before, receive] : starts) {
    ASSERT_LT(receive, program.size());
    const Instruction& instruction = program[receive];
    ASSERT_TRUE(IsReceive(instruction));
    ASSERT_LE(before, receive);
    started.push_back(receive);
    // Exclusive: from its start on the slot is nobody else's.
    for (size_t i = before; i < receive; ++i) {
      ASSERT_TRUE(!Shares(program[i], instruction) || SameUser(program[i], instruction))
          << ToText(program[i]) << " uses the memory of " << ToText(instruction);
    }
    // First in, first out, which the schedule's check proves for the instructions' order.
    const auto [kind, is_first] = last.try_emplace(instruction.op, ReceiveStart{});
    if (!is_first) {
      ASSERT_LT(kind->second.receive, receive);
    }
    // Earliest: whoever stands before it is in the way.
    const bool behind_the_last_user = before > 0 && Shares(program[before - 1], instruction) &&
                                      !SameUser(program[before - 1], instruction);
    ASSERT_TRUE(before == kind->second.before || behind_the_last_user) << ToText(instruction);
    kind->second = {before, receive};
  }
  // Each once, in an order in which the engine can walk along.
  ASSERT_TRUE(std::is_sorted(starts.begin(), starts.end(),
                             [](const auto& a, const auto& b) { return a.before < b.before; }));
  std::sort(started.begin(), started.end());
  std::vector<size_t> receives;
  for (size_t i = 0; i < program.size(); ++i) {
    if (IsReceive(program[i])) receives.push_back(i);
  }
  ASSERT_EQ(started, receives);
}

TEST(ReceiveStarts, AreAsEarlyAsMemoryAndOrderAllowInEverySchedule) {
  const auto* descriptor = ParallelSpec::Schedule_descriptor();
  for (int i = 0; i < descriptor->value_count(); ++i) {
    const auto schedule = static_cast<ParallelSpec::Schedule>(descriptor->value(i)->number());
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int chunks = 1; chunks <= (HasVirtualStages(schedule) ? 4 : 1); ++chunks) {
        for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
          const PipelineShape shape = {ranks, chunks, micro_batches};
          for (const auto& compute :
               {GenerateSchedule(schedule, shape), GenerateForwardOnly(shape)}) {
            for (const Program& program : LowerSchedule(compute, shape)) ExpectEarliest(program);
          }
        }
      }
    }
  }
}

TEST(ReceiveStarts, LetMessagesArriveDuringOtherMicroBatches) {
  const PipelineShape shape = {.ranks = 2, .micro_batches = 3};
  const Program program =
      LowerSchedule(GenerateSchedule(ParallelSpec::ONE_F_ONE_B, shape), shape)[0];
  ASSERT_EQ(ToText(program),
            "0F0 0SA0 0F1 0SA1 0RG0 0I0 0W0 0F2 0SA2 0RG1 0I1 0W1 0RG2 0I2 0W2 0R");
  std::vector<ReceiveStart> starts;
  FindReceiveStarts(program, &starts);
  // Two slots: the third micro-batch has that of the first, whose last instruction is 0W0.
  EXPECT_EQ(starts, (std::vector<ReceiveStart>{{0, 4}, {0, 9}, {7, 12}}));
}

}  // namespace
}  // namespace twinstream
