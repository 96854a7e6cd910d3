// A pipeline of fake stages whose results show any wrong operand, slot, message or order; and what
// every schedule must make of it, on any transport.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"
#include "parallel/pipeline_engine.h"
#include "parallel/schedule.h"
#include "parallel/stage.h"
#include "parallel/transport.h"

namespace twinstream::testing {

// y = f(x) on wrapping integers, and everything a stage is allowed to do to its slot: saved tensors
// and the output are scribbled over as soon as they are not needed.
class FakeStage final : public Stage {
 public:
  // Of a message: 80 KB, more than MPI sends without asking the receiver (4 KB in shared memory, 64
  // KB over TCP).
  static constexpr int64_t kElements = 20'000;

  // Logs what it is doing at each call.
  FakeStage(int number, int stages, std::vector<std::string>* log);

  TensorSpec BoundarySpec() const override;
  bool has_previous() const override { return number_ > 0; }
  bool has_next() const override { return number_ < stages_ - 1; }
  std::vector<TensorSpec> SavedSpecs() const override;
  void Forward(int micro_batch, Slot& slot) override;
  void BackwardInput(int micro_batch, Slot& slot) override;
  void BackwardWeight(int micro_batch, Slot& slot) override;

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
  std::byte* Allocate(int64_t bytes) override;
  void Free(std::byte* data, int64_t bytes) override;
  int64_t FreeBytes() const override { return 0; }
  std::byte* AllocateHost(int64_t bytes) override;
  void FreeHost(std::byte* data, int64_t bytes) override;
  void Copy(Tensor to, Tensor from) override;
  void CopyIn(Tensor to, const void* host) override;
  void CopyOut(void* host, Tensor from) override;
  void Synchronize() override {}
  std::unique_ptr<RecordedWork> Record(absl::FunctionRef<void()> /*issue*/) override {
    return nullptr;
  }
  const Ops& ops() const override;
  bool host_memory() const override { return true; }
  DeviceNetwork* network() override { return nullptr; }

  int64_t allocated() const { return allocated_; }

 private:
  int64_t allocated_ = 0;
};

// What the stages compute in two training steps with an evaluation between them, by a chain without
// slots, messages or schedules.
struct ChainResult {
  uint32_t loss = 0;
  std::vector<uint32_t> weight_gradients;  // by stage
};
ChainResult RunChain(const PipelineShape& shape);

// The same by PipelineEngine on the transport's ranks, of which shape.ranks are the pipeline's:
// the same results, reductions in time, as many slots as CheckSchedule promised; with receives at
// their instructions and as early as they go.
void CheckPipeline(ParallelSpec::Schedule schedule, const PipelineShape& shape,
                   const ChainResult& expected, Transport& transport);

// Calls `check` for every schedule of the enum, with 1 to 3 chunks where it has them, and batches
// that the ranks divide and do not divide.
void ForEachPipeline(
    int ranks,
    absl::FunctionRef<void(ParallelSpec::Schedule schedule, const PipelineShape& shape)> check);

}  // namespace twinstream::testing
