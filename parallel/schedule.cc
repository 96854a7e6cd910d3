// Generators and the text form. Lowering: schedule_lower.cc; proofs: schedule_check.cc.
#include "parallel/schedule.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "proto/layout_rules.h"

namespace twinstream {
namespace {

constexpr std::array kAllOps = {PipelineOp::kForward,           PipelineOp::kBackwardInput,
                                PipelineOp::kBackwardWeight,    PipelineOp::kSendActivation,
                                PipelineOp::kReceiveActivation, PipelineOp::kSendGradient,
                                PipelineOp::kReceiveGradient,   PipelineOp::kReduceGradients};

// All that tells one schedule from another, in steps: in each step a rank does one forward, one I
// and one W, as far as there are any.
struct Rhythm {
  int warm_up = 0;     // steps before the first I
  int weight_lag = 0;  // steps from an I to its W
};

Rhythm RhythmOf(ParallelSpec::Schedule schedule, const PipelineShape& shape, int rank) {
  const int behind = shape.ranks - 1 - rank;  // ranks that a micro-batch has yet to pass
  switch (schedule) {
    case ParallelSpec::GPIPE:
      return {.warm_up = shape.micro_batches};
    case ParallelSpec::ONE_F_ONE_B:
      return {.warm_up = behind};
    case ParallelSpec::INTERLEAVED:  // a group passes all chunks but the last before its first I
      return {.warm_up = 2 * behind + (shape.chunks - 1) * shape.ranks};
    case ParallelSpec::ZERO_BUBBLE:  // ZB-H1: what 1F1B's rank 0 holds, every rank may hold
      return {.warm_up = behind, .weight_lag = rank};
  }
  Die("unknown pipeline schedule");
}

struct Pass {
  int chunk, micro_batch;
};

// The `index`-th pass of a rank over its chunks. Micro-batches go through the chunks in groups of
// as many as there are ranks, so that each comes back to the first rank just when that has sent the
// group's last one on. The last group may reach beyond the micro-batches that exist: their passes
// are left out, which lets nobody wait for anything new.
Pass PassAt(int index, const PipelineShape& shape) {
  const int group = index / (shape.ranks * shape.chunks);
  return {.chunk = index / shape.ranks % shape.chunks,
          .micro_batch = group * shape.ranks + index % shape.ranks};
}

// Passes of a rank, those that are left out included.
int Passes(const PipelineShape& shape) {
  const int groups = (shape.micro_batches + shape.ranks - 1) / shape.ranks;
  return groups * shape.ranks * shape.chunks;
}

void CheckShape(const PipelineShape& shape) {
  Check(shape.ranks >= 1 && shape.chunks >= 1 && shape.micro_batches >= 1,
        "a pipeline of %d ranks, %d chunks, %d micro-batches", shape.ranks, shape.chunks,
        shape.micro_batches);
}

}  // namespace

absl::string_view NameOf(PipelineOp op) {
  switch (op) {
    case PipelineOp::kForward:
      return "F";
    case PipelineOp::kBackwardInput:
      return "I";
    case PipelineOp::kBackwardWeight:
      return "W";
    case PipelineOp::kSendActivation:
      return "SA";
    case PipelineOp::kReceiveActivation:
      return "RA";
    case PipelineOp::kSendGradient:
      return "SG";
    case PipelineOp::kReceiveGradient:
      return "RG";
    case PipelineOp::kReduceGradients:
      return "R";
  }
  Die("unknown pipeline operation");
}

bool OverwritesOutput(PipelineOp op) {
  return op == PipelineOp::kForward || op == PipelineOp::kBackwardInput;
}

bool OverwritesInputGradient(PipelineOp op) { return op == PipelineOp::kBackwardInput; }

std::vector<Program> GenerateSchedule(ParallelSpec::Schedule schedule, const PipelineShape& shape) {
  CheckShape(shape);
  Check(shape.chunks == 1 || HasVirtualStages(schedule), "%s has one chunk per rank, not %d",
        ParallelSpec::Schedule_Name(schedule), shape.chunks);
  std::vector<Program> programs(static_cast<size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const auto [warm_up, weight_lag] = RhythmOf(schedule, shape, rank);
    const auto add = [&, rank = rank](PipelineOp op, int index) {
      if (index < 0) return;
      Pass pass = PassAt(index, shape);
      if (pass.micro_batch >= shape.micro_batches) return;
      if (op != PipelineOp::kForward) pass.chunk = shape.chunks - 1 - pass.chunk;
      programs[static_cast<size_t>(rank)].push_back(
          {op, pass.chunk * shape.ranks + rank, pass.micro_batch});
    };
    for (int step = 0; step < Passes(shape) + warm_up + weight_lag; ++step) {
      add(PipelineOp::kForward, step);
      add(PipelineOp::kBackwardInput, step - warm_up);
      add(PipelineOp::kBackwardWeight, step - warm_up - weight_lag);
    }
  }
  return programs;
}

std::vector<Program> GenerateForwardOnly(const PipelineShape& shape) {
  CheckShape(shape);
  std::vector<Program> programs(static_cast<size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    for (int index = 0; index < Passes(shape); ++index) {
      const auto [chunk, micro_batch] = PassAt(index, shape);
      if (micro_batch >= shape.micro_batches) continue;
      programs[static_cast<size_t>(rank)].push_back(
          {PipelineOp::kForward, chunk * shape.ranks + rank, micro_batch});
    }
  }
  return programs;
}

std::string ToText(const Instruction& instruction) {
  std::string text = absl::StrCat(instruction.stage, NameOf(instruction.op));
  if (instruction.op != PipelineOp::kReduceGradients) {
    absl::StrAppend(&text, instruction.micro_batch);
  }
  return text;
}

std::string ToText(const Program& program) {
  return absl::StrJoin(program, " ", [](std::string* out, const Instruction& instruction) {
    absl::StrAppend(out, ToText(instruction));
  });
}

absl::StatusOr<Program> ProgramFromText(absl::string_view text) {
  Program program;
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    const auto letters = std::find_if_not(word.begin(), word.end(), absl::ascii_isdigit);
    const auto digits = std::find_if(letters, word.end(), absl::ascii_isdigit);
    const std::string name(letters, digits);
    const auto op = std::find_if(kAllOps.begin(), kAllOps.end(),
                                 [&](PipelineOp candidate) { return NameOf(candidate) == name; });
    Instruction instruction{};
    const bool has_micro_batch = op != kAllOps.end() && *op != PipelineOp::kReduceGradients;
    if (op == kAllOps.end() ||
        !absl::SimpleAtoi(std::string(word.begin(), letters), &instruction.stage) ||
        has_micro_batch !=
            absl::SimpleAtoi(std::string(digits, word.end()), &instruction.micro_batch)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", word, "\" is no instruction: write stage, operation, micro-batch as in 0F2, with ",
          "the operations F I W SA RA SG RG, or a reduction as in 0R"));
    }
    instruction.op = *op;
    program.push_back(instruction);
  }
  return program;
}

}  // namespace twinstream
