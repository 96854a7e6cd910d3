#include "launch/run_tracer.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/file.h"
#include "gtest/gtest.h"
#include "tests/testing/rank_devices.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

struct Event {
  double begin, end;  // microseconds
  std::string name, kind;
};

// The complete events of each rank by time; what begins first, and lasts longer, first.
std::map<int, std::vector<Event>> EventsIn(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.status();
  std::map<int, std::vector<Event>> events;
  const nlohmann::json trace = nlohmann::json::parse(*text);
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts"), duration = event.at("dur");
    events[event.at("tid")].push_back({begin, begin + duration, event.at("name"), event.at("cat")});
  }
  for (auto& [rank, list] : events) {
    std::stable_sort(list.begin(), list.end(), [](const Event& a, const Event& b) {
      return a.begin < b.begin || (a.begin == b.begin && a.end > b.end);
    });
  }
  return events;
}

// As the trace names them.
std::vector<std::string> NamesOf(const Program& program) {
  std::vector<std::string> names;
  for (const Instruction& instruction : program) {
    std::string name = absl::StrCat(NameOf(instruction.op), " s", instruction.stage);
    if (instruction.op != PipelineOp::kReduceGradients) {
      absl::StrAppend(&name, " m", instruction.micro_batch);
    }
    names.push_back(name);
  }
  return names;
}

// Updates 1 .. `steps` of the tiny job with a tracer, on all ranks; each rank's program. Every rank
// makes its tracer this much later than the rank before.
std::vector<Program> Trace(const JobSpec& job, int64_t steps,
                           std::chrono::milliseconds later = std::chrono::milliseconds(0)) {
  const int ranks = GridShape::From(job.parallel()).ranks();
  std::vector<Program> programs(static_cast<size_t>(ranks));
  RunRanks(ranks, [&](Transport& transport) {
    const std::unique_ptr<Device> device = *MakeDevice("cpu");
    Trainer trainer(job, Purpose::kTraining, AccumulationSteps(job), *device, transport);
    trainer.Materialize();
    trainer.InitializeWeights();
    std::this_thread::sleep_for(transport.rank() * later);
    RunTracer tracer(trainer, 1, job.train().steps());
    for (int64_t step = 1; step <= steps; ++step) {
      tracer.BeginStep(step);
      trainer.Step(step, 1e-3, false);
      EXPECT_TRUE(tracer.EndStep(step).ok());
    }
    EXPECT_TRUE(tracer.Finish().ok());
    const std::optional<TimeShares> shares = tracer.Shares();
    ASSERT_TRUE(shares.has_value());
    EXPECT_GT(shares->bubble, 0);
    EXPECT_LT(shares->bubble, 1);
    programs[static_cast<size_t>(transport.rank())] = trainer.program();
  });
  return programs;
}

// One rank's events of `steps` steps against its program.
void CheckTrack(const std::vector<Event>& events, const Program& program, int steps) {
  std::vector<std::string> expected, run;
  for (int step = 0; step < steps; ++step) {
    for (const std::string& name : NamesOf(program)) expected.push_back(name);
  }
  std::map<std::string, int> others;
  double free_from = -1e9;  // end of the instruction before
  for (const Event& event : events) {
    const bool of_a_stage = event.name.find(" s") != std::string::npos;
    if (!of_a_stage) ++others[event.name];
    if (!of_a_stage || event.name.rfind("wait", 0) == 0) continue;
    run.push_back(event.name);
    EXPECT_GE(event.begin, free_from - 0.002) << event.name << " begins too early";
    free_from = event.end;
  }
  EXPECT_EQ(run, expected);
  others.erase("gather");  // seen where a forward had to wait
  EXPECT_EQ(others, (std::map<std::string, int>{{"step", steps},
                                                {"pipeline", steps},
                                                {"reduce", steps},
                                                {"norm", steps},
                                                {"optimizer", steps}}));
}

TEST(RunTracer, TheTraceOfARunShowsTheOrderOfTheCheckedProgram) {
  for (int pipeline : {2, 4}) {
    for (Layout layout : Pipelines(pipeline, 4)) {
      layout.data = pipeline == 2 ? 2 : 1;
      SCOPED_TRACE(NameOf(layout));
      const TemporaryDirectory directory;
      JobSpec job = OnLayout(TinyJob(), layout);
      job.mutable_metrics()->set_directory(directory.path());
      job.mutable_metrics()->set_trace_steps("2,4-5");
      const std::vector<Program> programs = Trace(job, 6);
      std::map<int, std::vector<Event>> events = EventsIn(directory.Path("trace.json"));
      ASSERT_EQ(events.size(), programs.size());
      for (auto& [rank, list] : events) {
        SCOPED_TRACE(absl::StrCat("rank ", rank));
        CheckTrack(list, programs.at(static_cast<size_t>(rank)), 3);
      }
    }
  }
}

// On one clock a message cannot be taken before it is handed over. Threads leave a barrier within
// 50 ms of each other; the tracers are further apart.
TEST(RunTracer, AMessageIsReceivedAfterItWasSent) {
  const TemporaryDirectory directory;
  JobSpec job = OnLayout(TinyJob(), {.pipeline = 2});
  job.mutable_metrics()->set_directory(directory.path());
  job.mutable_metrics()->set_trace_steps("1");
  Trace(job, 1, std::chrono::milliseconds(500));
  std::map<int, std::vector<Event>> events = EventsIn(directory.Path("trace.json"));
  std::map<std::string, double> sent;
  for (const Event& event : events[0]) sent[event.name] = event.begin;
  int messages = 0;
  for (const Event& event : events[1]) {
    if (event.name.rfind("RA s1 m", 0) != 0) continue;
    ++messages;
    EXPECT_GT(event.end + 50e3, sent.at(absl::StrCat("SA s0 m", event.name.substr(7))));
  }
  EXPECT_EQ(messages, 12);
}

TEST(RunTracer, ARunThatEndsEarlyWritesWhatItHas) {
  const TemporaryDirectory directory;
  JobSpec job = OnLayout(TinyJob(), {.pipeline = 2});
  job.mutable_metrics()->set_directory(directory.path());
  job.mutable_metrics()->set_trace_steps("2-1000");
  const std::vector<Program> programs = Trace(job, 3);
  CheckTrack(EventsIn(directory.Path("trace.json"))[1], programs[1], 2);
}

TEST(RunTracer, WithoutTracedStepsNothingIsWritten) {
  const TemporaryDirectory directory;
  JobSpec job = OnLayout(TinyJob(), {.pipeline = 2});
  job.mutable_metrics()->set_directory(directory.path());
  job.mutable_metrics()->set_trace_steps("7");
  Trace(job, 2);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// Where work goes on after the calls that ask for it, times of other steps would mean nothing.
TEST(RunTracer, OnADeviceWithMemoryOfItsOwnOnlyTracedStepsHaveTimes) {
  const TemporaryDirectory directory;
  JobSpec job = OnLayout(TinyJob(), {.pipeline = 2});
  job.mutable_metrics()->set_directory(directory.path());
  job.mutable_metrics()->set_trace_steps("2");
  RunRanks(2, [&](Transport& transport) {
    const std::unique_ptr<Device> device = RemoteCpuDevices(nullptr)(transport.rank());
    Trainer trainer(job, Purpose::kTraining, AccumulationSteps(job), *device, transport);
    trainer.Materialize();
    trainer.InitializeWeights();
    RunTracer tracer(trainer, 1, 2);
    for (int64_t step : {1, 2}) {
      tracer.BeginStep(step);
      trainer.Step(step, 1e-3, false);
      EXPECT_TRUE(tracer.EndStep(step).ok());
      EXPECT_EQ(tracer.Shares().has_value(), step == 2);
    }
  });
}

TEST(RunTracer, ADirectoryThatIsGoneIsSaidOnEveryRank) {
  JobSpec job = OnLayout(TinyJob(), {.pipeline = 2});
  job.mutable_metrics()->set_directory("/nowhere/at/all");
  job.mutable_metrics()->set_trace_steps("1");
  RunRanks(2, [&](Transport& transport) {
    const std::unique_ptr<Device> device = *MakeDevice("cpu");
    Trainer trainer(job, Purpose::kTraining, AccumulationSteps(job), *device, transport);
    trainer.Materialize();
    trainer.InitializeWeights();
    RunTracer tracer(trainer, 1, 1);
    tracer.BeginStep(1);
    trainer.Step(1, 1e-3, false);
    const absl::Status status = tracer.EndStep(1);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("/nowhere/at/all/trace.json"), absl::string_view::npos);
  });
}

}  // namespace
}  // namespace twinstream::testing
