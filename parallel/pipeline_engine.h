// PipelineEngine: runs one rank's Program over its stages: a loop and one switch. Owns the slots'
// memory.
#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "core/device.h"
#include "parallel/communicator.h"
#include "parallel/schedule.h"
#include "parallel/stage.h"

namespace twinstream {

class PipelineEngine {
 public:
  // stages: this rank's chunks in order. peak_slots: of this rank, from CheckSchedule; the engine
  // dies if a program uses more. Allocates all slots.
  PipelineEngine(std::vector<Stage*> stages, const PipelineShape& shape, Communicator& pipeline,
                 Device& device, int peak_slots);

  // Bytes that the constructor allocates for such a rank.
  static int64_t SlotBytes(const std::vector<Stage*>& stages, int peak_slots);

  // `reduce(stage)` is called at kReduceGradients.
  void Run(const Program& program, absl::FunctionRef<void(int stage)> reduce);

 private:
  // See pipeline_engine.cc.
};

}  // namespace twinstream
