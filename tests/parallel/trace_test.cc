#include "parallel/trace.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"
#include "parallel/span_totals.h"
#include "tests/testing/recording_device.h"

namespace twinstream {
namespace {

TEST(Trace, IsJsonWithATrackPerRankAndAnEventPerSpan) {
  SpanTotals totals;
  std::vector<std::string> calls;
  testing::RecordingDevice device(calls);
  TraceRecorder recorder(3, device, totals);
  EXPECT_TRUE(recorder.empty());
  {
    const ObservedSpan step(recorder, {SpanKind::kStep, "step"});
    { const ObservedSpan span(recorder, {SpanKind::kForward, "F", 1, 3}); }
    { const ObservedSpan span(recorder, {SpanKind::kGradientReduction, "R", 1}); }
  }
  EXPECT_EQ(calls, std::vector<std::string>(3, "Synchronize"));
  const std::string text = ChromeTrace(
      {recorder.ChromeEvents(0, "rank \"0\""), recorder.ChromeEvents(1, "C:\\")}, "a \"job\"");
  const nlohmann::json events = nlohmann::json::parse(text).at("traceEvents");
  ASSERT_EQ(events.size(), 1 + 2 * (2 + 3));
  EXPECT_EQ(events[0].at("name"), "process_name");
  EXPECT_EQ(events[0].at("args").at("name"), "a \"job\"");
  for (size_t rank : {0, 1}) {
    const size_t first = 1 + 5 * rank;
    EXPECT_EQ(events[first].at("name"), "thread_name");
    EXPECT_EQ(events[first].at("args").at("name"), rank == 0 ? "rank \"0\"" : "C:\\");
    EXPECT_EQ(events[first + 1].at("args").at("sort_index"), rank);
    const std::vector<std::pair<std::string, std::string>> expected = {
        {"F s1 m3", "forward"}, {"R s1", "gradient reduction"}, {"step", "step"}};
    for (size_t i = 0; i < 3; ++i) {
      const nlohmann::json& event = events[first + 2 + i];
      EXPECT_EQ(event.at("ph"), "X");
      EXPECT_EQ(event.at("tid"), rank);
      EXPECT_EQ(event.at("name"), expected[i].first);
      EXPECT_EQ(event.at("cat"), expected[i].second);
      EXPECT_GE(event.at("dur").get<double>(), 0);
    }
    const nlohmann::json &forward = events[first + 2], &step = events[first + 4];
    EXPECT_LE(step.at("ts").get<double>(), forward.at("ts").get<double>());
  }
}

TEST(TraceDeathTest, OfMoreSpansThanPlannedDies) {
  Unobserved nobody;
  std::vector<std::string> calls;
  testing::RecordingDevice device(calls);
  TraceRecorder recorder(1, device, nobody);
  const Span span = {SpanKind::kForward, "F"};
  { const ObservedSpan first(recorder, span); }
  recorder.Begin(span);
  EXPECT_DEATH(recorder.End(span), "more than the 1 spans planned");
}

TEST(SpanKind, EveryOneHasAName) {
  for (int kind = 0; kind < kSpanKinds; ++kind) {
    EXPECT_FALSE(NameOf(static_cast<SpanKind>(kind)).empty());
  }
  EXPECT_DEATH(NameOf(static_cast<SpanKind>(kSpanKinds)), "unknown kind of span");
}

}  // namespace
}  // namespace twinstream
