#include "launch/metrics.h"

#include <cmath>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace twinstream {
namespace {

constexpr absl::string_view kLineBegin = "{\"step\": ";

// Whether this is a whole line of a step up to `last`.
bool Survives(absl::string_view line, int64_t last) {
  if (line.substr(0, kLineBegin.size()) != kLineBegin || line.back() != '}') return false;
  line.remove_prefix(kLineBegin.size());
  int64_t step = 0;
  return absl::SimpleAtoi(line.substr(0, line.find_first_of(",}")), &step) && step <= last;
}

// Leaves the whole lines of steps up to `last`.
absl::Status DropLinesBeyond(int64_t last, const std::string& path) {
  if (!std::filesystem::exists(path)) return absl::OkStatus();
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  std::string kept;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (Survives(line, last)) absl::StrAppend(&kept, line, "\n");
  }
  return kept == *text ? absl::OkStatus() : ReplaceFile(path, kept);
}

// What somebody has removed needs no room.
absl::Status OfDirectory(const std::string& directory, const absl::Status& written) {
  if (written.ok() || absl::IsDataLoss(written)) return written;
  return absl::Status(written.code(),
                      absl::StrCat("metrics.directory \"", directory, "\": ", written.message(),
                                   "; make room in it or name another"));
}

}  // namespace

absl::Status WriteMetricsFile(const MetricsSpec& spec, const std::string& name,
                              absl::string_view text) {
  return OfDirectory(spec.directory(),
                     ReplaceFile(absl::StrCat(spec.directory(), "/", name), text));
}

absl::StatusOr<MetricsWriter> MetricsWriter::Open(const MetricsOptions& options) {
  if (absl::Status s = MakeDirectories(options.directory); !s.ok()) return s;
  const std::string path = absl::StrCat(options.directory, "/metrics.jsonl");
  if (absl::Status s = DropLinesBeyond(options.resumed_step, path); !s.ok()) return s;
  absl::StatusOr<OutputFile> lines = OutputFile::Append(path);
  if (!lines.ok()) return lines.status();
  std::optional<TfEventsWriter> events;
  if (options.tensorboard) {
    absl::StatusOr<TfEventsWriter> created = TfEventsWriter::Create(
        absl::StrCat(options.directory, "/tensorboard"), options.resumed_step + 1);
    if (!created.ok()) return created.status();
    events.emplace(*std::move(created));
  }
  return MetricsWriter(options.directory, *std::move(lines), std::move(events));
}

MetricsWriter::MetricsWriter(std::string directory, OutputFile lines,
                             std::optional<TfEventsWriter> events)
    : directory_(std::move(directory)), lines_(std::move(lines)), events_(std::move(events)) {}

absl::Status MetricsWriter::Write(const StepMetrics& metrics) {
  std::vector<Entry> entries = {
      Real("loss", metrics.loss),
      Real("cross_entropy", metrics.cross_entropy),
      Real("grad_norm", metrics.grad_norm),
      Real("learning_rate", metrics.learning_rate),
      Integer("tokens", metrics.tokens),
      Real("tokens_per_second", metrics.tokens_per_second),
      Real("step_seconds", metrics.step_seconds),
      Real("model_flops_utilization", metrics.model_flops_utilization),
      Integer("memory_bytes", metrics.memory_bytes),
  };
  if (metrics.moe) {
    entries.push_back(Real("load_balance", metrics.moe->load_balance));
    entries.push_back(Real("router_z", metrics.moe->router_z));
    entries.push_back(Real("expert_imbalance", metrics.moe->expert_imbalance));
    entries.push_back(Integers("expert_tokens", metrics.moe->expert_tokens));
  }
  if (metrics.skipped_steps > 0) {
    entries.push_back(Integer("skipped_steps", metrics.skipped_steps));
  }
  return WriteEntries(metrics.step, entries);
}

absl::Status MetricsWriter::Write(const ValidationMetrics& metrics) {
  return WriteEntries(metrics.step, {Real("validation_loss", metrics.loss),
                                     Real("validation_perplexity", std::exp(metrics.loss))});
}

MetricsWriter::Entry MetricsWriter::Integer(absl::string_view key, int64_t value) {
  return {key, static_cast<double>(value), absl::StrCat(value)};
}

MetricsWriter::Entry MetricsWriter::Integers(absl::string_view key,
                                             absl::Span<const int64_t> values) {
  return {key, std::nullopt, absl::StrCat("[", absl::StrJoin(values, ", "), "]")};
}

// Nine digits bring every float32 back; JSON has no word for what is not finite.
MetricsWriter::Entry MetricsWriter::Real(absl::string_view key, double value) {
  if (std::isnan(value)) return {key, value, "\"nan\""};
  if (std::isinf(value)) return {key, value, value > 0 ? "\"inf\"" : "\"-inf\""};
  return {key, value, absl::StrFormat("%.9g", value)};
}

absl::Status MetricsWriter::WriteEntries(int64_t step, absl::Span<const Entry> entries) {
  std::string line = absl::StrCat(kLineBegin, step);
  std::vector<TaggedScalar> scalars;
  for (const Entry& entry : entries) {
    absl::StrAppend(&line, ", \"", entry.key, "\": ", entry.text);
    if (entry.scalar) scalars.push_back({entry.key, *entry.scalar});
  }
  absl::StrAppend(&line, "}\n");
  absl::Status written = lines_.Write(line);
  if (written.ok() && events_) written = events_->Write(step, scalars);
  return OfDirectory(directory_, written);
}

}  // namespace twinstream
