#include "parallel/pipeline_engine.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "parallel/host_communicator.h"
#include "tests/testing/pipeline_checks.h"
#include "tests/testing/run_ranks.h"

namespace twinstream {
namespace {

using testing::CountingDevice;
using testing::FakeStage;

// Between threads a send is done only when its receive is: the strictest timing of messages.
TEST(PipelineEngine, EveryScheduleComputesWhatOneChainComputes) {
  for (int ranks : {1, 2, 3, 4, 5}) {
    testing::ForEachPipeline(ranks,
                             [](ParallelSpec::Schedule schedule, const PipelineShape& shape) {
                               const testing::ChainResult expected = testing::RunChain(shape);
                               testing::RunRanks(shape.ranks, [&](Transport& transport) {
                                 testing::CheckPipeline(schedule, shape, expected, transport);
                               });
                             });
  }
}

// The middle of three ranks, alone: logs when messages are posted and waited for.
class LoggingCommunicator final : public Communicator {
 public:
  explicit LoggingCommunicator(std::vector<std::string>* log) : log_(*log) {}
  absl::string_view name() const override { return "pipeline"; }
  int rank() const override { return 1; }
  int size() const override { return 3; }
  void AllReduce(Tensor, Reduction) override { Die("the engine has no collectives"); }
  void AllGather(Tensor, absl::Span<const int64_t>) override { Die("no collectives"); }
  void ReduceScatter(Tensor, absl::Span<const int64_t>) override { Die("no collectives"); }
  void ReduceScatterAsBFloat16(Tensor, absl::Span<const int64_t>) override {
    Die("no collectives");
  }
  void AllToAll(Tensor, RowParts, Tensor, RowParts) override { Die("no collectives"); }
  void Broadcast(Tensor, int) override { Die("the engine has no collectives"); }
  void Barrier() override { Die("the engine has no collectives"); }
  Ticket Send(Tensor, int to, Channel) override {
    log_.push_back(absl::StrCat("send to ", to, " under ticket ", tickets_));
    return {.request = tickets_++};
  }
  void Receive(Tensor, int from, Channel) override {
    log_.push_back(absl::StrCat("receive from ", from));
  }
  Ticket StartReceive(Tensor, int, Channel) override { Die("the engine waits for its messages"); }
  void Wait(Ticket ticket) override {
    log_.push_back(absl::StrCat("wait for ticket ", ticket.request));
  }

 private:
  std::vector<std::string>& log_;
  int64_t tickets_ = 0;
};

// The send of an output is waited for before its slot's next F or I, that of an input's gradient
// before its slot's next I, and both at the end; never earlier.
TEST(PipelineEngine, WaitsForSendsOnlyWhereTheirMemoryIsUsedAgain) {
  const PipelineShape shape{.ranks = 3, .micro_batches = 3};
  std::vector<std::string> log;
  LoggingCommunicator pipeline(&log);
  CountingDevice device;
  FakeStage stage(1, 3, &log);
  PipelineEngine engine({&stage}, shape, pipeline, device, 2);
  Unobserved nobody;
  engine.Run(LowerSchedule(GenerateSchedule(ParallelSpec::ONE_F_ONE_B, shape), shape)[1], nobody,
             [&](int) { log.push_back(CurrentActivity()); });
  const std::vector<std::string> expected = {"receive from 0",
                                             "forward of micro-batch 0",
                                             "send to 2 under ticket 0",
                                             "receive from 0",
                                             "forward of micro-batch 1",
                                             "send to 2 under ticket 1",
                                             "receive from 2",
                                             "wait for ticket 0",
                                             "backward (inputs) of micro-batch 0",
                                             "send to 0 under ticket 2",
                                             "backward (weights) of micro-batch 0",
                                             "receive from 0",
                                             "forward of micro-batch 2",
                                             "send to 2 under ticket 3",
                                             "receive from 2",
                                             "wait for ticket 1",
                                             "backward (inputs) of micro-batch 1",
                                             "send to 0 under ticket 4",
                                             "backward (weights) of micro-batch 1",
                                             "receive from 2",
                                             "wait for ticket 3",
                                             "wait for ticket 2",
                                             "backward (inputs) of micro-batch 2",
                                             "send to 0 under ticket 5",
                                             "backward (weights) of micro-batch 2",
                                             "reduction of the gradients of stage 1",
                                             "wait for ticket 5",
                                             "wait for ticket 4"};
  EXPECT_EQ(log, expected);
}

TEST(PipelineEngine, SlotsHoldTheBoundariesThatExistAndWhatTheStageSaves) {
  const int64_t tensor = BytesFor({{"streams", DType::kI32, {FakeStage::kElements}}});
  std::vector<std::string> log;
  FakeStage only(0, 1, &log), first(0, 3, &log), middle(1, 3, &log), last(2, 3, &log);
  EXPECT_EQ(PipelineEngine::SlotBytes({&only}, 5), tensor * 5 * 3);
  EXPECT_EQ(PipelineEngine::SlotBytes({&first}, 1), 5 * tensor);
  EXPECT_EQ(PipelineEngine::SlotBytes({&middle}, 3), tensor * 3 * 6);
  EXPECT_EQ(PipelineEngine::SlotBytes({&last}, 1), 4 * tensor);
  // Chunks take turns: the largest counts, and boundaries have the same place for all.
  EXPECT_EQ(PipelineEngine::SlotBytes({&middle, &last}, 2), tensor * 2 * 6);
  EXPECT_EQ(PipelineEngine::SlotBytes({&first, &middle}, 2), tensor * 2 * 7);
}

TEST(PipelineEngineDeathTest, DiesWhenAProgramUsesMoreSlotsThanPromised) {
  const PipelineShape shape{.micro_batches = 2};
  const Program program = LowerSchedule(GenerateSchedule(ParallelSpec::GPIPE, shape), shape)[0];
  const auto run = [&](Transport& transport) {
    CountingDevice device;
    HostCommunicator pipeline(transport, GridGroup::kPipeline, {0});
    std::vector<std::string> log;
    FakeStage stage(0, 1, &log);
    PipelineEngine engine({&stage}, shape, pipeline, device, 1);
    Unobserved nobody;
    engine.Run(program, nobody, [](int) {});
  };
  EXPECT_DEATH(testing::RunRanks(1, run), "0F1 wants slot 1.*promised at most 1");
}

}  // namespace
}  // namespace twinstream
