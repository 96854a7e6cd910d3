#include "parallel/span.h"

#include "core/check.h"

namespace twinstream {

absl::string_view NameOf(SpanKind kind) {
  switch (kind) {
    case SpanKind::kStep:
      return "step";
    case SpanKind::kPipeline:
      return "pipeline";
    case SpanKind::kForward:
      return "forward";
    case SpanKind::kInputGradient:
      return "input gradient";
    case SpanKind::kWeightGradient:
      return "weight gradient";
    case SpanKind::kSend:
      return "send";
    case SpanKind::kReceive:
      return "receive";
    case SpanKind::kGradientReduction:
      return "gradient reduction";
    case SpanKind::kNorm:
      return "norm";
    case SpanKind::kOptimizer:
      return "optimizer";
    case SpanKind::kParameterGather:
      return "parameter gather";
  }
  Die("unknown kind of span");
}

}  // namespace twinstream
