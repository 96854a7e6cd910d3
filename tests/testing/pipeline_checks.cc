#include "tests/testing/pipeline_checks.h"

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "gtest/gtest.h"
#include "parallel/host_communicator.h"
#include "proto/layout_rules.h"
#include "tests/testing/run_ranks.h"

namespace twinstream::testing {
namespace {

constexpr int64_t kElements = FakeStage::kElements;
using Values = std::vector<uint32_t>;

uint32_t* Data(Tensor tensor) { return reinterpret_cast<uint32_t*>(tensor.data()); }
uint32_t Token(int micro_batch, int64_t i) {
  return static_cast<uint32_t>(int64_t{1000003} * (micro_batch + 1) + i);
}
uint32_t Output(int stage, uint32_t input) { return 3 * input + static_cast<uint32_t>(stage) + 1; }
uint32_t InputGradient(int stage, uint32_t d_output, uint32_t input) {
  return d_output * (2 * static_cast<uint32_t>(stage) + 5) + input;
}
// Not commutative over micro-batches.
uint32_t Accumulate(uint32_t sum, uint32_t addend) { return 31 * sum + addend; }

void AddStep(const PipelineShape& shape, bool training, ChainResult* sum) {
  for (int micro_batch = 0; micro_batch < shape.micro_batches; ++micro_batch) {
    std::vector<Values> x(static_cast<size_t>(shape.stages()) + 1, Values(kElements));
    for (int64_t i = 0; i < kElements; ++i) x[0][static_cast<size_t>(i)] = Token(micro_batch, i);
    for (size_t s = 0; s + 1 < x.size(); ++s) {
      std::transform(x[s].begin(), x[s].end(), x[s + 1].begin(),
                     [s](uint32_t in) { return Output(static_cast<int>(s), in); });
    }
    sum->loss = Accumulate(sum->loss, std::accumulate(x.back().begin(), x.back().end(), 0u));
    Values dy = x.back();
    for (size_t s = x.size() - 1; training && s-- > 0;) {
      sum->weight_gradients[s] = Accumulate(
          sum->weight_gradients[s], std::inner_product(dy.begin(), dy.end(), x[s].begin(), 0u));
      std::transform(dy.begin(), dy.end(), x[s].begin(), dy.begin(), [s](uint32_t d, uint32_t in) {
        return InputGradient(static_cast<int>(s), d, in);
      });
    }
  }
}

}  // namespace

FakeStage::FakeStage(int number, int stages, std::vector<std::string>* log)
    : number_(number), stages_(stages), log_(*log) {}

TensorSpec FakeStage::BoundarySpec() const { return {"streams", DType::kI32, {kElements}}; }

// The first stage saves more than the others, so that chunks lay a slot out differently.
std::vector<TensorSpec> FakeStage::SavedSpecs() const {
  std::vector<TensorSpec> specs = {{"x", DType::kI32, {kElements}},
                                   {"dy", DType::kI32, {kElements}}};
  if (!has_previous()) specs.push_back({"tokens", DType::kI32, {kElements}});
  return specs;
}

void FakeStage::Forward(int micro_batch, Slot& slot) {
  log_.push_back(CurrentActivity());
  uint32_t* x = Data(slot.saved[0]);
  uint32_t* y = Data(has_next() ? slot.output : slot.saved[1]);
  for (int64_t i = 0; i < kElements; ++i) {
    x[i] = has_previous() ? Data(slot.input)[i] : Token(micro_batch, i);
    y[i] = Output(number_, x[i]);
  }
  if (!has_next()) loss_ = Accumulate(loss_, std::accumulate(y, y + kElements, 0u));
  for (size_t s = has_next() ? 1 : 2; s < slot.saved.size(); ++s) {
    std::fill_n(Data(slot.saved[s]), kElements, 0xfacadeu);
  }
}

// The loss is the sum of squares, as it were: its gradient is y itself.
void FakeStage::BackwardInput(int micro_batch, Slot& slot) {
  log_.push_back(CurrentActivity());
  const uint32_t* x = Data(slot.saved[0]);
  uint32_t* dy = Data(slot.saved[1]);
  if (has_next()) std::copy_n(Data(slot.d_output), kElements, dy);
  for (int64_t i = 0; has_previous() && i < kElements; ++i) {
    Data(slot.d_input)[i] = InputGradient(number_, dy[i], x[i]);
  }
  if (has_next()) std::fill_n(Data(slot.output), kElements, 0xdeadu + micro_batch);
}

void FakeStage::BackwardWeight(int micro_batch, Slot& slot) {
  log_.push_back(CurrentActivity());
  const uint32_t* x = Data(slot.saved[0]);
  const uint32_t* dy = Data(slot.saved[1]);
  weight_gradient_ = Accumulate(weight_gradient_, std::inner_product(x, x + kElements, dy, 0u));
  std::fill_n(Data(slot.saved[0]), kElements, 0xbeefu + micro_batch);
  ++backward_passes_;
}

std::byte* CountingDevice::Allocate(int64_t bytes) {
  allocated_ += bytes;
  return new (std::align_val_t{64}) std::byte[static_cast<size_t>(bytes)]();
}
void CountingDevice::Free(std::byte* data, int64_t) {
  operator delete[](data, std::align_val_t{64});
}
std::byte* CountingDevice::AllocateHost(int64_t) { Die("the engine copies nothing"); }
void CountingDevice::FreeHost(std::byte*, int64_t) { Die("the engine copies nothing"); }
void CountingDevice::Copy(Tensor, Tensor) { Die("the engine copies nothing"); }
void CountingDevice::CopyIn(Tensor, const void*) { Die("the engine copies nothing"); }
void CountingDevice::CopyOut(void*, Tensor) { Die("the engine copies nothing"); }
const Ops& CountingDevice::ops() const { Die("the engine computes nothing"); }

ChainResult RunChain(const PipelineShape& shape) {
  ChainResult result;
  result.weight_gradients.resize(static_cast<size_t>(shape.stages()));
  for (bool training : {true, false, true}) AddStep(shape, training, &result);
  return result;
}

namespace {

void CheckEngine(ParallelSpec::Schedule schedule, const PipelineShape& shape,
                 const ChainResult& expected, Transport& transport, Overlap overlap) {
  const size_t rank = static_cast<size_t>(transport.rank());
  const std::vector<Program> training = LowerSchedule(GenerateSchedule(schedule, shape), shape);
  const std::vector<Program> evaluation = LowerSchedule(GenerateForwardOnly(shape), shape);
  const int peak_slots = CheckSchedule(training, shape)->peak_slots[rank];
  EXPECT_TRUE(CheckSchedule(evaluation, shape).ok());

  std::vector<std::string> log;
  std::vector<std::unique_ptr<FakeStage>> owned;
  std::vector<Stage*> stages;
  for (int stage = transport.rank(); stage < shape.stages(); stage += shape.ranks) {
    owned.push_back(std::make_unique<FakeStage>(stage, shape.stages(), &log));
    stages.push_back(owned.back().get());
  }
  CountingDevice device;
  HostCommunicator pipeline(transport, GridGroup::kPipeline, AllRanks(shape.ranks));
  CommunicationThread communication(overlap, {.pipeline = shape.ranks}, transport);
  PipelineEngine engine(stages, shape, pipeline, device, peak_slots,
                        overlap == Overlap::kOn ? &communication : nullptr);

  Unobserved nobody;
  std::map<int, std::vector<int>> backward_passes;  // at a stage's reductions
  for (const auto* programs : {&training, &evaluation, &training}) {
    engine.Run((*programs)[rank], nobody, [&](int stage) {
      const FakeStage& reduced = *owned.at(static_cast<size_t>(shape.ChunkOf(stage)));
      backward_passes[stage].push_back(reduced.backward_passes());
    });
  }
  const int M = shape.micro_batches;
  for (size_t chunk = 0; chunk < owned.size(); ++chunk) {
    const int stage = static_cast<int>(chunk) * shape.ranks + transport.rank();
    EXPECT_EQ(owned[chunk]->weight_gradient(),
              expected.weight_gradients[static_cast<size_t>(stage)])
        << "stage " << stage;
    EXPECT_EQ(owned[chunk]->loss(), owned[chunk]->has_next() ? 0 : expected.loss);
    EXPECT_EQ(backward_passes[stage], (std::vector<int>{M, 2 * M})) << "stage " << stage;
  }
  EXPECT_EQ(engine.peak_slots_seen(), peak_slots) << "rank " << rank;
  EXPECT_EQ(device.allocated(),
            PipelineEngine::SlotBytes(std::vector<const Stage*>(stages.begin(), stages.end()),
                                      peak_slots));
}

}  // namespace

void CheckPipeline(ParallelSpec::Schedule schedule, const PipelineShape& shape,
                   const ChainResult& expected, Transport& transport) {
  for (Overlap overlap : {Overlap::kOff, Overlap::kOn}) {
    CheckEngine(schedule, shape, expected, transport, overlap);
  }
}

void ForEachPipeline(
    int ranks,
    absl::FunctionRef<void(ParallelSpec::Schedule schedule, const PipelineShape& shape)> check) {
  const auto* descriptor = ParallelSpec::Schedule_descriptor();
  for (int i = 0; i < descriptor->value_count(); ++i) {
    const auto schedule = static_cast<ParallelSpec::Schedule>(descriptor->value(i)->number());
    for (int chunks :
         HasVirtualStages(schedule) ? std::vector<int>{1, 2, 3} : std::vector<int>{1}) {
      for (int micro_batches : {1, 2, 3, 8}) {
        SCOPED_TRACE(absl::StrCat(descriptor->value(i)->name(), " P=", ranks, " V=", chunks,
                                  " M=", micro_batches));
        check(schedule, {.ranks = ranks, .chunks = chunks, .micro_batches = micro_batches});
      }
    }
  }
}

}  // namespace twinstream::testing
