// OpRunner: times operations with Google Benchmark and says how near each comes to its floor.
#pragma once

#include <vector>

#include "benchmark/benchmark.h"
#include "tests/benchmarks/ops/op_benchmark.h"

namespace twinstream::benchmarks {

// Operands come from memory, as in a training step, whose other work drives them out of the caches:
// successive calls take different ones, of twice the last-level cache together. The host waits once
// for all of them: what it takes to issue one hides behind the one before, as in a step.
class OpRunner {
 public:
  // device: keeps account of its operations in `profile` (MakeProfiledDevice), from which their
  // floors follow. Both outlive this.
  OpRunner(Device& device, OpProfile& profile);

  // Measured just now, before the first benchmark.
  const Roofs& MeasureRoofs();
  // Times `benchmark`. Its counters: floor_us, fraction (floor over time), and the rate at which it
  // does its FLOPs or moves its bytes, whichever make the floor.
  void Run(benchmark::State& state, const OpBenchmark& benchmark);

 private:
  void Load(const OpBenchmark& benchmark);
  OpWork WorkOf(const PreparedOp& op);

  OpProfile& profile_;
  Operands operands_;
  Roofs roofs_;
  const OpBenchmark* loaded_ = nullptr;
  std::vector<PreparedOp> calls_;  // one for each set of operands; of equal work
  OpWork work_;                    // of each
};

}  // namespace twinstream::benchmarks
