#include "parallel/schedule.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/layout_rules.h"
#include "tests/testing/golden.h"

namespace twinstream {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// A schedule that is added to the enum is tested here unasked.
void ForEachSchedule(const std::function<void(ParallelSpec::Schedule)>& body) {
  const auto* descriptor = ParallelSpec::Schedule_descriptor();
  for (int i = 0; i < descriptor->value_count(); ++i) {
    SCOPED_TRACE(descriptor->value(i)->name());
    body(static_cast<ParallelSpec::Schedule>(descriptor->value(i)->number()));
  }
}

// Chunks per rank that the schedule is for.
std::vector<int> ChunksOf(ParallelSpec::Schedule schedule) {
  return HasVirtualStages(schedule) ? std::vector<int>{1, 2, 3, 4} : std::vector<int>{1};
}

// Every schedule for 1 to 8 ranks, 1 to 16 micro-batches and up to 4 chunks.
void ForEachCase(
    const std::function<void(ParallelSpec::Schedule, const PipelineShape& shape)>& body) {
  ForEachSchedule([&](ParallelSpec::Schedule schedule) {
    for (int chunks : ChunksOf(schedule)) {
      for (int ranks = 1; ranks <= 8; ++ranks) {
        for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
          SCOPED_TRACE(absl::StrCat("P=", ranks, " V=", chunks, " M=", micro_batches));
          body(schedule, {.ranks = ranks, .chunks = chunks, .micro_batches = micro_batches});
        }
      }
    }
  });
}

std::vector<Program> Lowered(ParallelSpec::Schedule schedule, const PipelineShape& shape) {
  return LowerSchedule(GenerateSchedule(schedule, shape), shape);
}

ScheduleReport ReportOf(const std::vector<Program>& programs, const PipelineShape& shape) {
  const absl::StatusOr<ScheduleReport> report = CheckSchedule(programs, shape);
  EXPECT_TRUE(report.ok()) << report.status();
  if (report.ok()) return *report;
  return {.peak_slots = std::vector<int>(static_cast<size_t>(shape.ranks))};
}

// One line per rank; all slots are 0.
std::vector<Program> FromLines(const std::vector<std::string>& lines) {
  std::vector<Program> programs;
  for (const std::string& line : lines) {
    const absl::StatusOr<Program> program = ProgramFromText(line);
    EXPECT_TRUE(program.ok()) << program.status();
    programs.push_back(*program);
  }
  return programs;
}

TEST(Schedule, IsCompleteAndNeverStuckForEveryPipelineAndBatch) {
  int cases = 0;
  ForEachCase([&](ParallelSpec::Schedule schedule, const PipelineShape& shape) {
    ReportOf(Lowered(schedule, shape), shape);
    ++cases;
  });
  EXPECT_GE(cases, (3 + 4) * 8 * 16);
}

// Whether the ranks come to their ends if each, before it computes, waits until every message that
// it has sent or asked for has been met by the other side's call.
bool EndEvenIfComputingWaitsForMessages(const std::vector<Program>& programs) {
  using Message = std::tuple<int, int, int>;  // from stage, to stage, micro-batch
  std::set<Message> sent, asked_for;
  std::vector<size_t> next(programs.size(), 0);
  std::vector<std::vector<Message>> under_way(programs.size());
  const auto have_met = [&](const Message& m) { return sent.count(m) + asked_for.count(m) == 2; };
  const auto go_on = [&](size_t rank) {
    const auto [op, stage, micro_batch, slot] = programs[rank][next[rank]];
    std::vector<Message>& own = under_way[rank];
    switch (op) {
      case PipelineOp::kSendActivation:
        own.push_back(*sent.insert({stage, stage + 1, micro_batch}).first);
        return true;
      case PipelineOp::kSendGradient:
        own.push_back(*sent.insert({stage, stage - 1, micro_batch}).first);
        return true;
      case PipelineOp::kReceiveActivation:
        own.push_back(*asked_for.insert({stage - 1, stage, micro_batch}).first);
        return true;
      case PipelineOp::kReceiveGradient:
        own.push_back(*asked_for.insert({stage + 1, stage, micro_batch}).first);
        return true;
      case PipelineOp::kReduceGradients:
        return true;
      case PipelineOp::kForward:
      case PipelineOp::kBackwardInput:
      case PipelineOp::kBackwardWeight:
        return std::all_of(own.begin(), own.end(), have_met);
    }
    return false;
  };
  size_t instructions = 0, done = 0, before = 0;
  for (const Program& program : programs) instructions += program.size();
  do {
    before = done;
    for (size_t rank = 0; rank < programs.size(); ++rank) {
      for (; next[rank] < programs[rank].size() && go_on(rank); ++next[rank]) ++done;
    }
  } while (done > before);
  return done == instructions;
}

// As a device may wait that loads a kernel at its first launch. For INTERLEAVED, which needs
// several chunks, there is PipelineEngine::Rehearse.
TEST(Schedule, WithoutVirtualStagesEndsEvenIfComputingWaitsForMessages) {
  ForEachCase([](ParallelSpec::Schedule schedule, const PipelineShape& shape) {
    EXPECT_TRUE(
        EndEvenIfComputingWaitsForMessages(LowerSchedule(GenerateForwardOnly(shape), shape)));
    if (HasVirtualStages(schedule)) return;
    EXPECT_TRUE(EndEvenIfComputingWaitsForMessages(Lowered(schedule, shape)));
  });
  const PipelineShape shape{.ranks = 2, .chunks = 2, .micro_batches = 3};
  EXPECT_FALSE(EndEvenIfComputingWaitsForMessages(Lowered(ParallelSpec::INTERLEAVED, shape)));
}

TEST(Schedule, GpipeAnd1F1BWaitForFillingAndDrainingWithFAndI) {
  for (auto schedule : {ParallelSpec::GPIPE, ParallelSpec::ONE_F_ONE_B}) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
        SCOPED_TRACE(absl::StrCat("P=", ranks, " M=", micro_batches));
        const PipelineShape shape{.ranks = ranks, .micro_batches = micro_batches};
        const ScheduleReport report = ReportOf(Lowered(schedule, shape), shape);
        for (int rank = 0; rank < ranks; ++rank) {
          const int in_flight = schedule == ParallelSpec::GPIPE
                                    ? micro_batches
                                    : std::min(ranks - rank, micro_batches);
          EXPECT_EQ(report.peak_slots[static_cast<size_t>(rank)], in_flight) << "rank " << rank;
        }
        const double work = 3.0 * micro_batches, time = work + 2.0 * (ranks - 1);
        EXPECT_NEAR(report.bubble, 1 - work / time, 1e-12);
      }
    }
  }
}

TEST(Schedule, ZeroBubbleWaitsHalfAsLongAs1F1BInTheMemoryOfItsFirstRank) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
      SCOPED_TRACE(absl::StrCat("P=", ranks, " M=", micro_batches));
      const PipelineShape shape{.ranks = ranks, .micro_batches = micro_batches};
      const ScheduleReport report = ReportOf(Lowered(ParallelSpec::ZERO_BUBBLE, shape), shape);
      const ScheduleReport other = ReportOf(Lowered(ParallelSpec::ONE_F_ONE_B, shape), shape);
      for (int slots : report.peak_slots) EXPECT_LE(slots, other.peak_slots[0]);
      EXPECT_LE(report.bubble, other.bubble + 1e-12);
      if (micro_batches < ranks) continue;
      const double work = 3.0 * micro_batches;
      EXPECT_NEAR(report.bubble, 1 - work / (work + ranks - 1), 1e-12);
    }
  }
}

// V chunks per rank divide the waiting of 1F1B by V where the ranks divide the micro-batches;
// elsewhere the incomplete group costs less than a complete one.
TEST(Schedule, InterleavedWaitsOneVthOf1F1B) {
  for (int chunks : {2, 3, 4}) {
    for (int ranks = 2; ranks <= 8; ++ranks) {
      double complete_group = 0;  // time
      for (int micro_batches = 16; micro_batches >= 1; --micro_batches) {
        SCOPED_TRACE(absl::StrCat("P=", ranks, " V=", chunks, " M=", micro_batches));
        const PipelineShape shape{.ranks = ranks, .chunks = chunks, .micro_batches = micro_batches};
        const ScheduleReport report = ReportOf(Lowered(ParallelSpec::INTERLEAVED, shape), shape);
        const double work = 3.0 * chunks * micro_batches;  // of a rank
        const double time = work / (1 - report.bubble);
        if (micro_batches % ranks == 0) {
          EXPECT_NEAR(time, work + 2.0 * (ranks - 1), 1e-9);
          complete_group = time;
        } else if (complete_group != 0) {
          EXPECT_LE(time, complete_group + 1e-9);
        }
        for (int rank = 0; rank < ranks; ++rank) {
          const int most = 2 * (ranks - 1 - rank) + (chunks - 1) * ranks + 1;
          EXPECT_LE(report.peak_slots[static_cast<size_t>(rank)], most) << "rank " << rank;
        }
      }
    }
  }
}

TEST(Schedule, ForwardOnlyNeedsOneSlotPerRank) {
  ForEachCase([](ParallelSpec::Schedule, const PipelineShape& shape) {
    const ScheduleReport report = ReportOf(LowerSchedule(GenerateForwardOnly(shape), shape), shape);
    EXPECT_EQ(report.peak_slots, std::vector<int>(static_cast<size_t>(shape.ranks), 1));
    if (shape.micro_batches % shape.ranks != 0 && shape.chunks > 1) return;
    const double work = shape.micro_batches * shape.chunks;
    EXPECT_NEAR(report.bubble, 1 - work / (work + shape.ranks - 1), 1e-12);
  });
}

TEST(Schedule, FourRanksAndEightMicroBatchesCostWhatTheLiteratureSays) {
  struct Cost {
    ParallelSpec::Schedule schedule;
    int chunks;
    double bubble;
    std::vector<int> slots;
  };
  const std::vector<Cost> costs = {{ParallelSpec::GPIPE, 1, 6.0 / 30, {8, 8, 8, 8}},
                                   {ParallelSpec::ONE_F_ONE_B, 1, 6.0 / 30, {4, 3, 2, 1}},
                                   {ParallelSpec::INTERLEAVED, 2, 6.0 / 54, {11, 9, 7, 5}},
                                   {ParallelSpec::ZERO_BUBBLE, 1, 3.0 / 27, {4, 4, 4, 4}}};
  for (const Cost& cost : costs) {
    SCOPED_TRACE(ParallelSpec::Schedule_Name(cost.schedule));
    const PipelineShape shape{.ranks = 4, .chunks = cost.chunks, .micro_batches = 8};
    const ScheduleReport report = ReportOf(Lowered(cost.schedule, shape), shape);
    EXPECT_EQ(report.peak_slots, cost.slots);
    EXPECT_NEAR(report.bubble, cost.bubble, 1e-12);
  }
}

std::string Golden(const std::string& name) {
  std::ifstream file(absl::StrCat(testing::GoldenDirectory(), "/schedule_", name, ".txt"));
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Lines(const std::vector<Program>& programs) {
  std::string text;
  for (const Program& program : programs) absl::StrAppend(&text, ToText(program), "\n");
  return text;
}

TEST(Schedule, TwoRanksAndThreeMicroBatchesReadAsTheGoldenText) {
  const PipelineShape shape{.ranks = 2, .micro_batches = 3};
  ForEachSchedule([&](ParallelSpec::Schedule schedule) {
    PipelineShape with_chunks = shape;
    with_chunks.chunks = HasVirtualStages(schedule) ? 2 : 1;
    EXPECT_EQ(Lines(Lowered(schedule, with_chunks)),
              Golden(absl::AsciiStrToLower(ParallelSpec::Schedule_Name(schedule))));
  });
  EXPECT_EQ(Lines(LowerSchedule(GenerateForwardOnly(shape), shape)), Golden("forward_only"));
}

TEST(Schedule, TextReadsBack) {
  const PipelineShape shape{.ranks = 3, .micro_batches = 12};
  for (Program program : Lowered(ParallelSpec::ONE_F_ONE_B, shape)) {
    const absl::StatusOr<Program> read = ProgramFromText(ToText(program));
    ASSERT_TRUE(read.ok()) << read.status();
    for (Instruction& instruction : program) instruction.slot = 0;
    EXPECT_EQ(*read, program);
  }
  for (const char* bad : {"0X2", "F2", "0F", "0R1", "0", "0F2x", "0f2", "-1F0"}) {
    const absl::StatusOr<Program> read = ProgramFromText(absl::StrCat("0F0 ", bad));
    ASSERT_FALSE(read.ok()) << bad;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(absl::StrCat("\"", bad, "\"")));
  }
}

std::string RefusalOf(const std::vector<Program>& programs, const PipelineShape& shape) {
  const absl::StatusOr<ScheduleReport> report = CheckSchedule(programs, shape);
  return report.ok() ? "accepted" : std::string(report.status().message());
}

// Every instruction of every rank, dropped and duplicated.
TEST(ScheduleCheck, RefusesAnyDroppedOrDuplicatedInstruction) {
  ForEachSchedule([](ParallelSpec::Schedule schedule) {
    const PipelineShape shape{.ranks = 3, .chunks = ChunksOf(schedule).back(), .micro_batches = 4};
    const std::vector<Program> whole = Lowered(schedule, shape);
    for (size_t rank = 0; rank < whole.size(); ++rank) {
      for (size_t i = 0; i < whole[rank].size(); ++i) {
        SCOPED_TRACE(absl::StrCat("rank ", rank, " ", ToText(whole[rank][i])));
        std::vector<Program> mutated = whole;
        mutated[rank].erase(mutated[rank].begin() + static_cast<int64_t>(i));
        EXPECT_THAT(RefusalOf(mutated, shape),
                    AnyOf(HasSubstr("rule \"dependency\""), HasSubstr("rule \"complete\""),
                          HasSubstr("rule \"exclusive\"")));
        mutated = whole;
        mutated[rank].push_back(whole[rank][i]);
        EXPECT_THAT(RefusalOf(mutated, shape), HasSubstr("rule \"once\""));
      }
    }
  });
}

// Neighbours of one micro-batch depend on each other, except that W need not wait for SG.
TEST(ScheduleCheck, RefusesSwappedInstructionsOfOneMicroBatch) {
  const PipelineShape shape{.ranks = 3, .micro_batches = 4};
  const std::vector<Program> whole = Lowered(ParallelSpec::ONE_F_ONE_B, shape);
  for (size_t rank = 0; rank < whole.size(); ++rank) {
    for (size_t i = 0; i + 1 < whole[rank].size(); ++i) {
      const Instruction &first = whole[rank][i], &second = whole[rank][i + 1];
      std::vector<Program> mutated = whole;
      std::swap(mutated[rank][i], mutated[rank][i + 1]);
      SCOPED_TRACE(absl::StrCat(ToText(first), " ", ToText(second)));
      if (first.op == PipelineOp::kSendGradient) {
        EXPECT_EQ(RefusalOf(mutated, shape), "accepted");
      } else if (first.micro_batch == second.micro_batch ||
                 second.op == PipelineOp::kReduceGradients) {
        EXPECT_THAT(RefusalOf(mutated, shape), HasSubstr("rule \"dependency\""));
      }
    }
  }
}

struct Mutation {
  const char* rule;
  std::vector<std::string> programs;  // slots are 0
};

TEST(ScheduleCheck, NamesTheBrokenRuleAndTheInstruction) {
  const std::vector<Mutation> mutations = {
      {"instruction 0 (1F0) breaks rule \"placement\"", {"1F0", "0F0"}},
      {"instruction 2 (0SG0) breaks rule \"placement\"",
       {"0F0 0SA0 0SG0 0RG0 0I0 0W0 0R", "1RA0 1F0 1I0 1SG0 1W0 1R"}},
      {"instruction 2 (0F2) breaks rule \"placement\"", {"0F0 0SA0 0F2 0SA2", "1RA0 1F0"}},
      {"instruction 0 (0F1) breaks rule \"placement\"", {"0F1 0SA1", "1RA0 1F0"}},
      {"instruction 1 (0F0) breaks rule \"once\"", {"0F0 0F0 0SA0", "1RA0 1F0"}},
      {"instruction 0 (0SA0) breaks rule \"dependency\"", {"0SA0 0F0", "1RA0 1F0"}},
      {"instruction 4 (1R) breaks rule \"dependency\"",
       {"0F0 0SA0 0RG0 0I0 0W0 0R", "1RA0 1F0 1I0 1SG0 1R 1W0"}},
      {"stage 1 lacks a part of micro-batch 0", {"0F0 0SA0 0RG0 0I0 0W0 0R", "1RA0 1F0"}},
      {"stage 0 lacks the reduction", {"0F0 0SA0 0RG0 0I0 0W0", "1RA0 1F0 1I0 1SG0 1W0 1R"}}};
  for (const Mutation& mutation : mutations) {
    EXPECT_THAT(RefusalOf(FromLines(mutation.programs), {.ranks = 2, .micro_batches = 1}),
                HasSubstr(mutation.rule));
  }
}

TEST(ScheduleCheck, RefusesSlotsThatTwoMicroBatchesShare) {
  const PipelineShape shape{.ranks = 2, .micro_batches = 2};
  std::vector<Program> programs = Lowered(ParallelSpec::ONE_F_ONE_B, shape);
  for (Instruction& instruction : programs[0]) instruction.slot = 0;
  EXPECT_THAT(RefusalOf(programs, shape), HasSubstr("(0F1) breaks rule \"exclusive\""));

  programs = Lowered(ParallelSpec::ONE_F_ONE_B, shape);
  programs[0][1].slot = 1;  // 0SA0 from another slot than 0F0's
  EXPECT_THAT(RefusalOf(programs, shape), HasSubstr("(0SA0) breaks rule \"exclusive\""));
}

TEST(ScheduleCheck, RefusesMicroBatchesOutOfOrder) {
  const PipelineShape shape{.ranks = 2, .micro_batches = 2};
  EXPECT_THAT(RefusalOf(FromLines({"0F1 0SA1 0F0 0SA0", "1RA0 1F0 1RA1 1F1"}), shape),
              HasSubstr("(0F0) breaks rule \"ascending\""));
}

TEST(ScheduleCheck, RefusesMessagesThatOvertake) {
  const PipelineShape shape{.ranks = 2, .micro_batches = 2};
  std::vector<Program> programs = LowerSchedule(GenerateForwardOnly(shape), shape);
  programs[0] = *ProgramFromText("0F0 0F1 0SA1 0SA0");
  programs[0][1].slot = programs[0][2].slot = 1;
  EXPECT_THAT(RefusalOf(programs, shape),
              HasSubstr("rank 1, instruction 0 (1RA0) breaks rule \"fifo\""));
}

// Rank 0 wants its first gradient before it sends the activation that rank 1 asks for first.
TEST(ScheduleCheck, RefusesRanksThatWaitForEachOther) {
  const PipelineShape shape{.ranks = 2, .micro_batches = 2};
  std::vector<Program> programs = Lowered(ParallelSpec::GPIPE, shape);
  programs[0] = Lowered(ParallelSpec::ONE_F_ONE_B, shape)[0];
  ReportOf(programs, shape);  // fits so far: two in flight
  programs[0] = FromLines({"0F0 0SA0 0RG0 0I0 0W0 0F1 0SA1 0RG1 0I1 0W1 0R"})[0];
  EXPECT_THAT(RefusalOf(programs, shape),
              HasSubstr("rule \"never stuck\": rank 0 waits at instruction 2 (0RG0), rank 1 waits "
                        "at instruction 2 (1RA1)"));
}

// Two chunks per rank: rank 0 wants the output of 0SA2 back before it takes the message that lets
// rank 1 go on to receive it. Sends that complete early would hide it.
TEST(ScheduleCheck, RefusesProgramsThatNeedBufferedSends) {
  const PipelineShape shape{.ranks = 2, .chunks = 2, .micro_batches = 4};
  std::vector<Program> programs =
      FromLines({"0F0 0SA0 0F1 0SA1 0F2 0SA2 0F3 0SA3 "
                 "2RA0 2F0 2SA0 2RA1 2F1 2SA1 2RA2 2F2 2SA2 2RA3 2F3 2SA3",
                 "1RA0 1F0 1SA0 1RA1 1F1 1SA1 1RA2 1F2 1SA2 1RA3 1F3 1SA3 "
                 "3RA0 3F0 3RA1 3F1 3RA2 3F2 3RA3 3F3"});
  EXPECT_THAT(RefusalOf(programs, shape),
              HasSubstr("rule \"never stuck\": rank 0 waits at instruction 6 (0F3), rank 1 waits "
                        "at instruction 4 (1F1)"));
  for (Program& program : programs) {
    for (Instruction& instruction : program) instruction.slot = instruction.micro_batch;
  }
  EXPECT_EQ(RefusalOf(programs, shape), "accepted");
}

}  // namespace
}  // namespace twinstream
