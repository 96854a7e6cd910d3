// The bubble that a run reports is the one that the schedule's check says, where stages work alike.
#include "parallel/span_totals.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "parallel/host_communicator.h"
#include "parallel/pipeline_engine.h"
#include "proto/layout_rules.h"
#include "tests/testing/pipeline_checks.h"
#include "tests/testing/run_ranks.h"

namespace twinstream {
namespace {

constexpr int kRanks = 2;
constexpr auto kWork = std::chrono::milliseconds(4);

// Every operation takes the same time, on a core or without one: it sleeps.
class SleepingStage final : public Stage {
 public:
  SleepingStage(int number, int stages) : number_(number), stages_(stages) {}
  TensorSpec BoundarySpec() const override { return {"streams", DType::kF32, {16}}; }
  bool has_previous() const override { return number_ > 0; }
  bool has_next() const override { return number_ < stages_ - 1; }
  std::vector<TensorSpec> SavedSpecs() const override { return {}; }
  void Forward(int, Slot&) override { std::this_thread::sleep_for(kWork); }
  void BackwardInput(int, Slot&) override { std::this_thread::sleep_for(kWork); }
  void BackwardWeight(int, Slot&) override { std::this_thread::sleep_for(kWork); }

 private:
  const int number_, stages_;
};

// One step on `kRanks` ranks.
TimeShares Measure(const std::vector<Program>& programs, const PipelineShape& shape,
                   const std::vector<int>& peak_slots) {
  TimeShares shares;
  testing::RunRanks(kRanks, [&](Transport& transport) {
    HostCommunicator pipeline(transport, GridGroup::kPipeline, {0, 1});
    std::vector<SleepingStage> stages;
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      stages.emplace_back(chunk * kRanks + transport.rank(), shape.stages());
    }
    std::vector<Stage*> pointers;
    for (SleepingStage& stage : stages) pointers.push_back(&stage);
    testing::CountingDevice device;
    const size_t rank = static_cast<size_t>(transport.rank());
    PipelineEngine engine(pointers, shape, pipeline, device, peak_slots[rank]);
    SpanTotals totals;
    pipeline.Barrier();
    {
      const ObservedSpan step(totals, {SpanKind::kStep, "step"});
      const ObservedSpan span(totals, {SpanKind::kPipeline, "pipeline"});
      engine.Run(programs[rank], totals, [](int) {});
    }
    const TimeShares all = SharesOf(totals, pipeline);
    if (rank == 0) shares = all;
  });
  return shares;
}

struct Case {
  ParallelSpec::Schedule schedule;
  PipelineShape shape;
  std::vector<Program> programs;
  ScheduleReport report;
  std::vector<double> bubbles;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto* descriptor = ParallelSpec::Schedule_descriptor();
  for (int i = 0; i < descriptor->value_count(); ++i) {
    const auto schedule = static_cast<ParallelSpec::Schedule>(descriptor->value(i)->number());
    const PipelineShape shape = {
        .ranks = kRanks, .chunks = HasVirtualStages(schedule) ? 2 : 1, .micro_batches = 4};
    const std::vector<Program> programs = LowerSchedule(GenerateSchedule(schedule, shape), shape);
    cases.push_back({schedule, shape, programs, *CheckSchedule(programs, shape), {}});
  }
  return cases;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The median of runs, in which schedules take turns, so that whatever else the machine does falls
// on all alike. True when all are within three points.
bool MeasureAll(std::vector<Case>& cases) {
  for (Case& c : cases) c.bubbles.clear();
  for (int round = 0; round < 5; ++round) {
    for (Case& c : cases) {
      c.bubbles.push_back(Measure(c.programs, c.shape, c.report.peak_slots).bubble);
    }
  }
  return std::all_of(cases.begin(), cases.end(), [](const Case& c) {
    return std::abs(Median(c.bubbles) - c.report.bubble) < 0.03;
  });
}

TEST(SpanTotals, TheBubbleOfTwoEqualStagesIsTheSchedulesWithinThreePoints) {
  std::vector<Case> cases = Cases();
  // A machine with other work wakes threads late: it gets more tries, which a wrong bubble would
  // not pass either.
  for (int tries = 0; tries < 20 && !MeasureAll(cases);) ++tries;
  for (const Case& c : cases) {
    std::printf("%-12s bubble of the schedule %.1f %%, measured %.1f %%\n",
                ParallelSpec::Schedule_Name(c.schedule).c_str(), 100 * c.report.bubble,
                100 * Median(c.bubbles));
    EXPECT_NEAR(Median(c.bubbles), c.report.bubble, 0.03)
        << ParallelSpec::Schedule_Name(c.schedule);
  }
}

TEST(SpanTotals, SharesAreOfTheSlowestPipelineAndOfAllSteps) {
  testing::RunRanks(2, [](Transport& transport) {
    HostCommunicator world(transport, GridGroup::kWorld, {0, 1});
    SpanTotals totals;
    {
      const ObservedSpan step(totals, {SpanKind::kStep, "step"});
      const ObservedSpan pipeline(totals, {SpanKind::kPipeline, "pipeline"});
      {
        const ObservedSpan compute(totals, {SpanKind::kForward, "F"});
        if (transport.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(40));
      }
      const ObservedSpan reduction(totals, {SpanKind::kGradientReduction, "R"});
      if (transport.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(40));
    }
    const TimeShares shares = SharesOf(totals, world);
    // Rank 1 computes nothing in rank 0's 40 ms and communicates for 40 of 80 ms; some late waking
    // is allowed.
    EXPECT_NEAR(shares.bubble, 0.5, 0.2);
    EXPECT_NEAR(shares.communication, 0.5, 0.2);
  });
}

TEST(SpanTotals, WaitingForSumsAndValuesIsCommunicationAndNoBubble) {
  testing::RunRanks(2, [](Transport& transport) {
    HostCommunicator world(transport, GridGroup::kWorld, {0, 1});
    SpanTotals totals;
    const auto pass = [] { std::this_thread::sleep_for(std::chrono::milliseconds(40)); };
    {
      const ObservedSpan step(totals, {SpanKind::kStep, "step"});
      const ObservedSpan pipeline(totals, {SpanKind::kPipeline, "pipeline"});
      {
        const ObservedSpan compute(totals, {SpanKind::kForward, "F"});
        pass();
        const ObservedSpan gather(totals, {SpanKind::kParameterGather, "gather"});
        pass();
      }
      const ObservedSpan reduction(totals, {SpanKind::kGradientReduction, "reduce"});
      pass();
    }
    const TimeShares shares = SharesOf(totals, world);
    EXPECT_NEAR(shares.bubble, 0, 0.2);
    EXPECT_NEAR(shares.communication, 2.0 / 3, 0.2);
  });
}

}  // namespace
}  // namespace twinstream
