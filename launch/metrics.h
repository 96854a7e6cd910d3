// MetricsWriter: what a run measured, as lines of metrics.jsonl and as TensorBoard events. Rank 0
// alone has one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/file.h"
#include "launch/tfevents.h"
#include "proto/job.pb.h"

namespace twinstream {

struct MoeMetrics {
  double load_balance = 0;  // before its coefficient
  double router_z = 0;      // before its coefficient
  // The largest share of a layer's tokens that one of its experts took, times the experts; 1 is
  // even.
  double expert_imbalance = 0;
  std::vector<int64_t> expert_tokens;  // that each expert took, all layers together
};

// Of one optimizer step, over the whole global batch.
struct StepMetrics {
  int64_t step = 0;  // from 1
  double loss = 0;
  double cross_entropy = 0;
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  int64_t tokens = 0;  // trained on after this step, since the first
  double tokens_per_second = 0;
  double step_seconds = 0;
  double model_flops_utilization = 0;  // of the peak
  int64_t memory_bytes = 0;            // of the rank that uses most
  std::optional<MoeMetrics> moe = std::nullopt;
  int64_t skipped_steps = 0;  // written once there are any
};

struct ValidationMetrics {
  int64_t step = 0;
  double loss = 0;  // nats per token; the perplexity is its exponential
};

struct MetricsOptions {
  std::string directory;  // made if missing
  bool tensorboard = true;
  int64_t resumed_step = 0;  // updates done before this process
};

// A file of metrics.directory, as a whole; the directory exists. A failure names the field.
absl::Status WriteMetricsFile(const MetricsSpec& spec, const std::string& name,
                              absl::string_view text);

class MetricsWriter {
 public:
  // Lines of an earlier run beyond resumed_step, and a torn last one, are dropped first.
  static absl::StatusOr<MetricsWriter> Open(const MetricsOptions& options);

  // One line each, written through when this returns. An error names metrics.directory, or the file
  // that was removed meanwhile.
  absl::Status Write(const StepMetrics& metrics);
  absl::Status Write(const ValidationMetrics& metrics);

 private:
  // A value and its key, with all digits that it has to be printed with. Lists are no scalars.
  struct Entry {
    absl::string_view key;
    std::optional<double> scalar;
    std::string text;
  };
  static Entry Integer(absl::string_view key, int64_t value);
  static Entry Real(absl::string_view key, double value);
  static Entry Integers(absl::string_view key, absl::Span<const int64_t> values);

  MetricsWriter(std::string directory, OutputFile lines, std::optional<TfEventsWriter> events);
  absl::Status WriteEntries(int64_t step, absl::Span<const Entry> entries);

  std::string directory_;  // for messages
  OutputFile lines_;
  std::optional<TfEventsWriter> events_;
};

}  // namespace twinstream
