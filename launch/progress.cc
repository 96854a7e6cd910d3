#include "launch/progress.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"

namespace twinstream {
namespace {

constexpr double kSmoothing = 0.2;  // weight of the newest step in the expected time of a step

// 42s, 3m07s, 2h05m, 4d03h.
std::string Duration(double seconds) {
  const int64_t s = std::llround(std::max(seconds, 0.0));
  if (s < 60) return absl::StrFormat("%ds", s);
  if (s < 3600) return absl::StrFormat("%dm%02ds", s / 60, s % 60);
  if (s < 86400) return absl::StrFormat("%dh%02dm", s / 3600, s / 60 % 60);
  return absl::StrFormat("%dd%02dh", s / 86400, s / 3600 % 24);
}

// Three digits and a letter: 987, 12.3k, 4.56M.
std::string Short(double value) {
  for (const char* suffix : {"", "k", "M", "G"}) {
    if (value < 999.5) return absl::StrFormat("%.3g%s", value, suffix);
    value /= 1000;
  }
  return absl::StrFormat("%.3gT", value);
}

}  // namespace

int TerminalColumns(FILE* out) {
  winsize size = {};
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

Progress::Progress(const ProgressOptions& options) : options_(options) {
  Check(options.out != nullptr && options.columns > 1, "progress without a place to print to");
}

void Progress::Step(const StepMetrics& metrics) {
  seconds_per_step_ =
      seconds_per_step_ == 0
          ? metrics.step_seconds
          : seconds_per_step_ + kSmoothing * (metrics.step_seconds - seconds_per_step_);
  // The most wanted first: a narrow terminal cuts the end off.
  const std::string text = absl::StrFormat(
      "step %d/%d  loss %.4f  %s tokens/s  ETA %s  grad norm %.3g  lr %.3g", metrics.step,
      options_.steps, metrics.loss, Short(metrics.tokens_per_second),
      Duration(seconds_per_step_ * static_cast<double>(options_.steps - metrics.step)),
      metrics.grad_norm, metrics.learning_rate);
  if (options_.terminal) {
    PrintLive(text);
  } else {
    PrintLine(text);
  }
}

void Progress::Validation(const ValidationMetrics& metrics) {
  PrintLine(absl::StrFormat("step %d/%d  validation loss %.4f  perplexity %.4g", metrics.step,
                            options_.steps, metrics.loss, std::exp(metrics.loss)));
}

void Progress::Table(absl::string_view lines) {
  LeaveLive();
  PrintLine(lines);
}

void Progress::Finish(const RunSummary& summary) {
  LeaveLive();
  const double rate =
      summary.seconds > 0 ? static_cast<double>(summary.tokens) / summary.seconds : 0;
  std::string text =
      absl::StrFormat("%d steps, %d tokens in %s (%s tokens/s). Final loss %.4f", summary.steps,
                      summary.tokens, Duration(summary.seconds), Short(rate), summary.final_loss);
  if (summary.validation_loss) {
    absl::StrAppendFormat(&text, ", validation loss %.4f", *summary.validation_loss);
  }
  absl::StrAppend(&text, ".\n");
  if (summary.communication) {
    const std::string bubble =
        !summary.bubble
            ? "Communication"
            : absl::StrFormat("Pipeline bubble %.1f %% (planned %.1f %%), communication",
                              100 * *summary.bubble, 100 * summary.planned_bubble);
    absl::StrAppendFormat(&text, "%s %.1f %% of step time.\n", bubble,
                          100 * *summary.communication);
  }
  PrintLine(absl::StrCat(text, "Checkpoints: ", summary.checkpoint_directory));
}

// What a live line says stays.
void Progress::LeaveLive() {
  if (live_) absl::FPrintF(options_.out, "\n");
  live_ = false;
}

// Over a live line, which stays empty until the next step.
void Progress::PrintLine(absl::string_view text) {
  if (live_) PrintLive("");
  absl::FPrintF(options_.out, "%s%s\n", live_ ? "\r" : "", text);
  std::fflush(options_.out);
  live_ = false;
}

// One column short of the width, or the terminal would wrap. Padding wipes what was there before.
void Progress::PrintLive(absl::string_view text) {
  const int width = options_.columns - 1;
  absl::FPrintF(options_.out, "\r%-*s", width, text.substr(0, static_cast<size_t>(width)));
  std::fflush(options_.out);
  live_ = true;
}

}  // namespace twinstream
