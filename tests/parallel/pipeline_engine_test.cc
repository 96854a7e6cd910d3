#include "parallel/pipeline_engine.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/host_communicator.h"
#include "tests/testing/run_ranks.h"

namespace twinstream {
namespace {

using ::testing::ElementsAre;

// Wrapping integers, so that any wrong operand, and any wrong order of sums, shows. 256 KiB a
// message: larger than any transport would buffer unasked.
constexpr int64_t kElements = 1 << 16;
using Values = std::vector<uint32_t>;

uint32_t* Data(Tensor tensor) { return reinterpret_cast<uint32_t*>(tensor.data()); }
uint32_t Token(int micro_batch, int64_t i) {
  return static_cast<uint32_t>(1000003 * (micro_batch + 1) + i);
}
uint32_t Output(int stage, uint32_t input) { return 3 * input + static_cast<uint32_t>(stage) + 1; }
uint32_t InputGradient(int stage, uint32_t d_output, uint32_t input) {
  return d_output * (2 * static_cast<uint32_t>(stage) + 5) + input;
}
// Not commutative over micro-batches.
uint32_t Accumulate(uint32_t sum, uint32_t addend) { return 31 * sum + addend; }

// y = f(x), and everything a stage is allowed to do to its slot: saved tensors and the output are
// scribbled over as soon as they are not needed.
class FakeStage final : public Stage {
 public:
  // Logs what it is doing at each call.
  FakeStage(int number, int stages, std::vector<std::string>* log)
      : number_(number), stages_(stages), log_(*log) {}

  TensorSpec BoundarySpec() const override { return {"streams", DType::kI32, {kElements}}; }
  bool has_previous() const override { return number_ > 0; }
  bool has_next() const override { return number_ < stages_ - 1; }
  std::vector<TensorSpec> SavedSpecs() const override {
    return {{"x", DType::kI32, {kElements}}, {"dy", DType::kI32, {kElements}}};
  }

  void Forward(int micro_batch, Slot& slot) override {
    log_.push_back(CurrentActivity());
    uint32_t* x = Data(slot.saved[0]);
    uint32_t* y = Data(has_next() ? slot.output : slot.saved[1]);
    for (int64_t i = 0; i < kElements; ++i) {
      x[i] = has_previous() ? Data(slot.input)[i] : Token(micro_batch, i);
      y[i] = Output(number_, x[i]);
    }
    if (!has_next()) loss_ = Accumulate(loss_, std::accumulate(y, y + kElements, 0u));
  }

  // The loss is the sum of squares, as it were: its gradient is y itself.
  void BackwardInput(int micro_batch, Slot& slot) override {
    log_.push_back(CurrentActivity());
    const uint32_t* x = Data(slot.saved[0]);
    uint32_t* dy = Data(slot.saved[1]);
    if (has_next()) std::copy_n(Data(slot.d_output), kElements, dy);
    for (int64_t i = 0; has_previous() && i < kElements; ++i) {
      Data(slot.d_input)[i] = InputGradient(number_, dy[i], x[i]);
    }
    if (has_next()) std::fill_n(Data(slot.output), kElements, 0xdeadu + micro_batch);
  }

  void BackwardWeight(int micro_batch, Slot& slot) override {
    log_.push_back(CurrentActivity());
    const uint32_t* x = Data(slot.saved[0]);
    const uint32_t* dy = Data(slot.saved[1]);
    weight_gradient_ = Accumulate(weight_gradient_, std::inner_product(x, x + kElements, dy, 0u));
    std::fill_n(Data(slot.saved[0]), kElements, 0xbeefu + micro_batch);
    ++backward_passes_;
  }

  uint32_t loss() const { return loss_; }
  uint32_t weight_gradient() const { return weight_gradient_; }
  int backward_passes() const { return backward_passes_; }

 private:
  const int number_, stages_;
  std::vector<std::string>& log_;
  uint32_t loss_ = 0, weight_gradient_ = 0;
  int backward_passes_ = 0;
};

// Memory of which every byte is counted, and nothing else.
class CountingDevice final : public Device {
 public:
  absl::string_view name() const override { return "counting"; }
  std::byte* Allocate(int64_t bytes) override {
    allocated_ += bytes;
    return new (std::align_val_t{64}) std::byte[static_cast<size_t>(bytes)]();
  }
  void Free(std::byte* data, int64_t) override { operator delete[](data, std::align_val_t{64}); }
  void Copy(Tensor, Tensor) override { Die("the engine copies nothing"); }
  void CopyIn(Tensor, const void*) override { Die("the engine copies nothing"); }
  void CopyOut(void*, Tensor) override { Die("the engine copies nothing"); }
  void Synchronize() override {}
  const Ops& ops() const override { Die("the engine computes nothing"); }

  int64_t allocated() const { return allocated_; }

 private:
  int64_t allocated_ = 0;
};

// The same chain without slots, messages or schedules.
struct Expectation {
  uint32_t loss = 0;
  Values weight_gradients;  // by stage
};
void AddStep(Expectation& sum, int stages, int micro_batches, bool training) {
  sum.weight_gradients.resize(static_cast<size_t>(stages));
  for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    std::vector<Values> x(static_cast<size_t>(stages) + 1, Values(kElements));
    for (int64_t i = 0; i < kElements; ++i) x[0][static_cast<size_t>(i)] = Token(micro_batch, i);
    for (size_t s = 0; s + 1 < x.size(); ++s) {
      std::transform(x[s].begin(), x[s].end(), x[s + 1].begin(),
                     [s](uint32_t in) { return Output(static_cast<int>(s), in); });
    }
    sum.loss = Accumulate(sum.loss, std::accumulate(x.back().begin(), x.back().end(), 0u));
    Values dy = x.back();
    for (size_t s = x.size() - 1; training && s-- > 0;) {
      sum.weight_gradients[s] = Accumulate(
          sum.weight_gradients[s], std::inner_product(dy.begin(), dy.end(), x[s].begin(), 0u));
      std::transform(dy.begin(), dy.end(), x[s].begin(), dy.begin(), [s](uint32_t d, uint32_t in) {
        return InputGradient(static_cast<int>(s), d, in);
      });
    }
  }
}

std::vector<int> AllRanks(int ranks) {
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Two training steps with an evaluation between them, over the same slots.
void ExpectTheResultsOfOneChain(ParallelSpec::Schedule schedule, const PipelineShape& shape) {
  SCOPED_TRACE(absl::StrCat(ParallelSpec::Schedule_Name(schedule), " P=", shape.ranks,
                            " M=", shape.micro_batches));
  const std::vector<Program> training = LowerSchedule(GenerateSchedule(schedule, shape), shape);
  const std::vector<Program> evaluation = LowerSchedule(GenerateForwardOnly(shape), shape);
  const std::vector<int> peak_slots = CheckSchedule(training, shape)->peak_slots;
  Expectation expected;
  for (bool train : {true, false, true}) AddStep(expected, shape.ranks, shape.micro_batches, train);

  testing::RunRanks(shape.ranks, [&](Transport& transport) {
    const size_t rank = static_cast<size_t>(transport.rank());
    CountingDevice device;
    HostCommunicator pipeline(transport, GridGroup::kPipeline, AllRanks(shape.ranks));
    std::vector<std::string> log;
    FakeStage stage(transport.rank(), shape.ranks, &log);
    PipelineEngine engine({&stage}, shape, pipeline, device, peak_slots[rank]);
    std::vector<int> backward_passes_at_reduction;
    const auto reduce = [&](int reduced) {
      EXPECT_EQ(reduced, transport.rank());
      backward_passes_at_reduction.push_back(stage.backward_passes());
    };
    for (const auto* programs : {&training, &evaluation, &training}) {
      engine.Run((*programs)[rank], reduce);
    }
    EXPECT_EQ(stage.weight_gradient(), expected.weight_gradients[rank]) << "rank " << rank;
    EXPECT_EQ(stage.loss(), stage.has_next() ? 0 : expected.loss);
    EXPECT_THAT(backward_passes_at_reduction,
                ElementsAre(shape.micro_batches, 2 * shape.micro_batches));
    EXPECT_EQ(engine.peak_slots_seen(), peak_slots[rank]) << "rank " << rank;
    EXPECT_EQ(device.allocated(), PipelineEngine::SlotBytes({&stage}, peak_slots[rank]));
  });
}

TEST(PipelineEngine, EveryBuiltScheduleComputesWhatOneChainComputes) {
  const auto* descriptor = ParallelSpec::Schedule_descriptor();
  for (int i = 0; i < descriptor->value_count(); ++i) {
    const auto schedule = static_cast<ParallelSpec::Schedule>(descriptor->value(i)->number());
    if (schedule == ParallelSpec::INTERLEAVED || schedule == ParallelSpec::ZERO_BUBBLE) continue;
    for (int ranks : {1, 2, 3, 4, 5}) {
      for (int micro_batches : {1, 2, 3, 8}) {
        ExpectTheResultsOfOneChain(schedule, {.ranks = ranks, .micro_batches = micro_batches});
      }
    }
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

// A send is waited for before its slot's backward (which may overwrite the output), before the
// slot's next user, and at the end; never earlier.
TEST(PipelineEngine, WaitsForSendsOnlyWhereTheirMemoryIsUsedAgain) {
  const PipelineShape shape{.ranks = 3, .micro_batches = 3};
  std::vector<std::string> log;
  LoggingCommunicator pipeline(&log);
  CountingDevice device;
  FakeStage stage(1, 3, &log);
  PipelineEngine engine({&stage}, shape, pipeline, device, 2);
  engine.Run(LowerSchedule(GenerateSchedule(ParallelSpec::ONE_F_ONE_B, shape), shape)[1],
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
                                             "wait for ticket 2",
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
                                             "backward (inputs) of micro-batch 2",
                                             "send to 0 under ticket 5",
                                             "backward (weights) of micro-batch 2",
                                             "reduction of the gradients of stage 1",
                                             "wait for ticket 5",
                                             "wait for ticket 4"};
  EXPECT_EQ(log, expected);
}

TEST(PipelineEngine, SlotsHoldTheBoundariesThatExistAndWhatTheStageSaves) {
  const int64_t tensor = kElements * SizeOf(DType::kI32);
  std::vector<std::string> log;
  FakeStage only(0, 1, &log), first(0, 3, &log), middle(1, 3, &log), last(2, 3, &log);
  EXPECT_EQ(PipelineEngine::SlotBytes({&only}, 5), 5 * 2 * tensor);
  EXPECT_EQ(PipelineEngine::SlotBytes({&first}, 1), 4 * tensor);
  EXPECT_EQ(PipelineEngine::SlotBytes({&middle}, 3), 3 * 6 * tensor);
  EXPECT_EQ(PipelineEngine::SlotBytes({&last}, 1), 4 * tensor);
  // Chunks take turns: the largest counts.
  EXPECT_EQ(PipelineEngine::SlotBytes({&first, &middle}, 2), 2 * 6 * tensor);
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
    engine.Run(program, [](int) {});
  };
  EXPECT_DEATH(testing::RunRanks(1, run), "0F1 wants slot 1.*promised at most 1");
}

}  // namespace
}  // namespace twinstream
