// Progress: what a person watching a run sees. On a terminal one live line, rewritten in place;
// otherwise a plain line per logged step. Validation results, the end's summary and tables are
// lines of their own on both.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "launch/metrics.h"

namespace twinstream {

// Columns of the terminal that `out` is; 80 when it is none or does not tell.
int TerminalColumns(FILE* out);

struct ProgressOptions {
  FILE* out = nullptr;  // outlives the Progress; not closed
  bool terminal = false;
  int columns = 80;   // of the terminal
  int64_t steps = 0;  // the run's last step
};

struct RunSummary {
  int64_t steps = 0;   // of this process
  int64_t tokens = 0;  // of this process
  double seconds = 0;  // of wall clock
  double final_loss = 0;
  std::optional<double> validation_loss = std::nullopt;  // the last one; absent without evaluation
  // Share of the steps' time; absent where nobody measured it.
  std::optional<double> communication = std::nullopt;
  // Share of the pipeline's time not computing, as measured; absent with one pipeline rank, or
  // without `communication`.
  std::optional<double> bubble = std::nullopt;
  double planned_bubble = 0;  // and as the schedule has it with equal work
  std::string checkpoint_directory = {};
};

class Progress {
 public:
  explicit Progress(const ProgressOptions& options);

  void Step(const StepMetrics& metrics);
  void Validation(const ValidationMetrics& metrics);
  void Finish(const RunSummary& summary);
  void Table(absl::string_view lines);  // as it is, below what is there

 private:
  void LeaveLive();
  void PrintLine(absl::string_view text);
  void PrintLive(absl::string_view text);

  ProgressOptions options_;
  double seconds_per_step_ = 0;  // smoothed; 0 before the first step
  bool live_ = false;            // the cursor is in a live line
};

}  // namespace twinstream
