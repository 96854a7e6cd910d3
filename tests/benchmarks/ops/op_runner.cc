#include "tests/benchmarks/ops/op_runner.h"

#include <algorithm>
#include <chrono>

namespace twinstream::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

int64_t LastLevelCacheBytes() {
  int64_t bytes = int64_t{32} << 20;  // where the system does not say
  for (const benchmark::CPUInfo::CacheInfo& cache : benchmark::CPUInfo::Get().caches) {
    bytes = std::max<int64_t>(bytes, cache.size);
  }
  return bytes;
}

}  // namespace

OpRunner::OpRunner(Device& device) : operands_(device), roofs_(operands_) {}

void OpRunner::Load(const OpBenchmark& benchmark) {
  constexpr size_t kMostSets = 64;
  constexpr int64_t kMostBytes = int64_t{1} << 30;  // and one set more, in Operands' memory
  const int64_t bytes = std::min(2 * LastLevelCacheBytes(), kMostBytes);
  operands_.Clear();
  calls_.clear();
  roofs_.Refresh();
  do {
    calls_.push_back(benchmark.prepare(operands_));
    calls_.back().run();  // makes what is made once
  } while (operands_.bytes() < bytes && calls_.size() < kMostSets);
  operands_.device().Synchronize();
  loaded_ = &benchmark;
  next_ = 0;
}

void OpRunner::Run(benchmark::State& state, const OpBenchmark& benchmark) {
  if (loaded_ != &benchmark) Load(benchmark);
  const Clock::time_point begin = Clock::now();
  for (auto _ : state) {
    calls_[next_].run();
    operands_.device().Synchronize();
    next_ = next_ + 1 == calls_.size() ? 0 : next_ + 1;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count() /
                         static_cast<double>(state.iterations());
  const OpCost& cost = calls_[0].cost;
  const double floor = roofs_.FloorSeconds(cost, benchmark.operands);
  state.counters["floor_us"] = floor * 1e6;
  state.counters["fraction"] = floor / seconds;
  if (roofs_.ArithmeticBound(cost, benchmark.operands)) {
    state.counters["GFLOP/s"] = cost.flops / seconds * 1e-9;
  } else {
    state.counters["GB/s"] = cost.bytes / seconds * 1e-9;
  }
}

}  // namespace twinstream::benchmarks
