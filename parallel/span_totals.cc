#include "parallel/span_totals.h"

#include "parallel/collectives.h"

namespace twinstream {

void SpanTotals::Begin(const Span& span) { begin_[static_cast<size_t>(span.kind)] = Clock::now(); }

void SpanTotals::End(const Span& span) {
  const size_t kind = static_cast<size_t>(span.kind);
  total_[kind] += Clock::now() - begin_[kind];
}

double SpanTotals::seconds(SpanKind kind) const {
  return std::chrono::duration<double>(total_[static_cast<size_t>(kind)]).count();
}

TimeShares SharesOf(const SpanTotals& totals, Communicator& world) {
  const double gather = totals.seconds(SpanKind::kParameterGather);  // within forwards
  const double computing = totals.seconds(SpanKind::kForward) - gather +
                           totals.seconds(SpanKind::kInputGradient) +
                           totals.seconds(SpanKind::kWeightGradient);
  const double reduction = totals.seconds(SpanKind::kGradientReduction);
  const double communication =
      totals.seconds(SpanKind::kSend) + totals.seconds(SpanKind::kReceive) + reduction + gather;
  const double all_computing = AllReduceValue(world, computing, Reduction::kSum);
  const double all_communication = AllReduceValue(world, communication, Reduction::kSum);
  const double steps = AllReduceValue(world, totals.seconds(SpanKind::kStep), Reduction::kSum);
  const double pipeline =
      world.size() * AllReduceValue(world, totals.seconds(SpanKind::kPipeline) - reduction - gather,
                                    Reduction::kMax);
  return {.bubble = pipeline > 0 ? 1 - all_computing / pipeline : 0,
          .communication = steps > 0 ? all_communication / steps : 0};
}

}  // namespace twinstream
