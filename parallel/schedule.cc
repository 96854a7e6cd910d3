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

namespace twinstream {
namespace {

constexpr std::array kAllOps = {PipelineOp::kForward,           PipelineOp::kBackwardInput,
                                PipelineOp::kBackwardWeight,    PipelineOp::kSendActivation,
                                PipelineOp::kReceiveActivation, PipelineOp::kSendGradient,
                                PipelineOp::kReceiveGradient,   PipelineOp::kReduceGradients};

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

// The forward passes that `rank` does before it alternates with backward passes: all that tells one
// schedule from another here. An interleaved schedule would also map step -> (chunk, micro-batch),
// and a zero-bubble one let W follow its I at a distance; the loop below stays.
int WarmUp(ParallelSpec::Schedule schedule, const PipelineShape& shape, int rank) {
  switch (schedule) {
    case ParallelSpec::GPIPE:
      return shape.micro_batches;
    case ParallelSpec::ONE_F_ONE_B:
      return shape.ranks - 1 - rank;
    case ParallelSpec::INTERLEAVED:
    case ParallelSpec::ZERO_BUBBLE:
      Die(absl::StrCat("parallel.schedule ", ParallelSpec::Schedule_Name(schedule),
                       " is refused by validate"));
  }
  Die("unknown pipeline schedule");
}

void CheckShape(const PipelineShape& shape) {
  Check(shape.ranks >= 1 && shape.micro_batches >= 1, "a pipeline of %d ranks, %d micro-batches",
        shape.ranks, shape.micro_batches);
  Check(shape.chunks == 1, "%d virtual stages per rank are refused by validate", shape.chunks);
}

}  // namespace

bool OverwritesOutput(PipelineOp op) {
  return op == PipelineOp::kReceiveActivation || op == PipelineOp::kForward ||
         op == PipelineOp::kBackwardInput;
}

bool OverwritesInputGradient(PipelineOp op) {
  return op == PipelineOp::kReceiveActivation || op == PipelineOp::kForward;
}

std::vector<Program> GenerateSchedule(ParallelSpec::Schedule schedule, const PipelineShape& shape) {
  CheckShape(shape);
  std::vector<Program> programs(static_cast<size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    Program& program = programs[static_cast<size_t>(rank)];
    const int warm_up = WarmUp(schedule, shape, rank);
    for (int step = 0; step < shape.micro_batches + warm_up; ++step) {
      const int forward = step;
      const int backward = step - warm_up;
      if (forward < shape.micro_batches) program.push_back({PipelineOp::kForward, rank, forward});
      if (backward >= 0) {
        program.push_back({PipelineOp::kBackwardInput, rank, backward});
        program.push_back({PipelineOp::kBackwardWeight, rank, backward});
      }
    }
  }
  return programs;
}

std::vector<Program> GenerateForwardOnly(const PipelineShape& shape) {
  CheckShape(shape);
  std::vector<Program> programs(static_cast<size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    for (int micro_batch = 0; micro_batch < shape.micro_batches; ++micro_batch) {
      programs[static_cast<size_t>(rank)].push_back({PipelineOp::kForward, rank, micro_batch});
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
