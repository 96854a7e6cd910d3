#include "parallel/trace.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/check.h"

namespace twinstream {
namespace {

double Microseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

// A metadata event: what Perfetto shows instead of numbers.
std::string Metadata(absl::string_view what, int rank, absl::string_view argument) {
  return absl::StrFormat(R"({"ph":"M","pid":0,"tid":%d,"name":"%s","args":{%s}})", rank, what,
                         argument);
}

// name: without control characters.
std::string NameArgument(absl::string_view name) {
  return absl::StrCat("\"name\":\"", absl::StrReplaceAll(name, {{"\\", "\\\\"}, {"\"", "\\\""}}),
                      "\"");
}

}  // namespace

TraceRecorder::TraceRecorder(int64_t most_spans, Device& device, SpanObserver& next)
    : device_(device), next_(next), most_spans_(static_cast<size_t>(most_spans)) {
  records_.reserve(most_spans_);
}

void TraceRecorder::AlignClocks(Communicator& world) {
  world.Barrier();  // whoever came late to this one
  world.Barrier();  // is in time for this one
  origin_ = Clock::now();
}

void TraceRecorder::Begin(const Span& span) {
  next_.Begin(span);
  begin_[static_cast<size_t>(span.kind)] = Clock::now();
}

void TraceRecorder::End(const Span& span) {
  device_.Synchronize();
  Check(records_.size() < most_spans_, "a trace of more than the %d spans planned", most_spans_);
  records_.push_back({span, begin_[static_cast<size_t>(span.kind)], Clock::now()});
  next_.End(span);
}

std::string TraceRecorder::ChromeEvents(int rank, absl::string_view name) const {
  std::string events =
      absl::StrCat(Metadata("thread_name", rank, NameArgument(name)), ",\n",
                   Metadata("thread_sort_index", rank, absl::StrCat("\"sort_index\":", rank)));
  for (const auto& [span, begin, end] : records_) {
    absl::StrAppendFormat(
        &events,
        ",\n"
        R"({"ph":"X","pid":0,"tid":%d,"ts":%.3f,"dur":%.3f,"cat":"%s","name":"%s)",
        rank, Microseconds(begin - origin_), Microseconds(end - begin), NameOf(span.kind),
        span.name);
    if (span.stage >= 0) absl::StrAppend(&events, " s", span.stage);
    if (span.micro_batch >= 0) absl::StrAppend(&events, " m", span.micro_batch);
    absl::StrAppend(&events, "\"}");
  }
  return events;
}

std::string ChromeTrace(const std::vector<std::string>& tracks, absl::string_view process) {
  return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n",
                      Metadata("process_name", 0, NameArgument(process)), ",\n",
                      absl::StrJoin(tracks, ",\n"), "\n]}\n");
}

}  // namespace twinstream
