// Spans: what a rank does in a step, from when to when, told to an observer. The engine and the
// trainer call it around their own work and know nothing about who listens.
#pragma once

#include "absl/strings/string_view.h"

namespace twinstream {

// What a span's time counts as.
enum class SpanKind {
  kStep,      // the whole of an update; the others lie in it
  kPipeline,  // from the first instruction of a schedule to the last; holds the next six
  kForward,
  kInputGradient,
  kWeightGradient,
  kSend,     // handing a message over, and waiting until one has left
  kReceive,  // of streams or their gradient from a neighbour, waiting included
  kGradientReduction,
  kNorm,  // tied gradients, loss and gradient norm, over all ranks
  kOptimizer,
  kParameterGather,
};
constexpr int kSpanKinds = 11;

absl::string_view NameOf(SpanKind kind);  // "step", ..., "input gradient", ..., "parameter gather"

struct Span {
  SpanKind kind;
  absl::string_view name;  // "F", "SA", "optimizer"; outlives all use
  int stage = -1;          // -1: of no stage
  int micro_batch = -1;    // -1: of no micro-batch
};

class SpanObserver {
 public:
  virtual ~SpanObserver() = default;
  // Spans of one thread; they nest, those of one kind do not.
  virtual void Begin(const Span& span) = 0;
  virtual void End(const Span& span) = 0;
};

class Unobserved final : public SpanObserver {
 public:
  void Begin(const Span& /*span*/) override {}
  void End(const Span& /*span*/) override {}
};

// A span that lasts as long as this object.
class ObservedSpan {
 public:
  ObservedSpan(SpanObserver& observer, const Span& span) : observer_(observer), span_(span) {
    observer_.Begin(span_);
  }
  ~ObservedSpan() { observer_.End(span_); }
  ObservedSpan(const ObservedSpan&) = delete;
  ObservedSpan& operator=(const ObservedSpan&) = delete;

 private:
  SpanObserver& observer_;
  const Span span_;
};

}  // namespace twinstream
