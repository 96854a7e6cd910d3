#include "tests/benchmarks/ops/op_runner.h"

#include <algorithm>
#include <chrono>

namespace twinstream::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

int64_t LastLevelCacheBytes(const Device& device) {
  if (!device.host_memory()) return int64_t{128} << 20;  // at least a card's second-level cache
  int64_t bytes = int64_t{32} << 20;                     // where the system does not say
  for (const benchmark::CPUInfo::CacheInfo& cache : benchmark::CPUInfo::Get().caches) {
    bytes = std::max<int64_t>(bytes, cache.size);
  }
  return bytes;
}

OpWork Sum(const OpProfile& profile) {
  OpWork sum;
  for (const OpRow& row : profile.rows()) {
    sum.flops += row.work.flops;
    sum.bytes += row.work.bytes;
  }
  return sum;
}

}  // namespace

OpRunner::OpRunner(Device& device, OpProfile& profile)
    : profile_(profile), operands_(device), roofs_(operands_) {
  for (int step = 0; step < 2; ++step) {  // a profile forgets its first step
    profile_.BeginStep();
    profile_.EndStep();
  }
}

const Roofs& OpRunner::MeasureRoofs() {
  roofs_.Refresh();
  return roofs_;
}

OpWork OpRunner::WorkOf(const PreparedOp& op) {
  const OpWork before = Sum(profile_);
  profile_.BeginStep();
  op();
  profile_.EndStep();
  const OpWork after = Sum(profile_);
  return {.flops = after.flops - before.flops, .bytes = after.bytes - before.bytes};
}

void OpRunner::Load(const OpBenchmark& benchmark) {
  constexpr size_t kMostSets = 64;
  constexpr int64_t kMostBytes = int64_t{1} << 30;  // and one set more, in Operands' memory
  const int64_t bytes = std::min(2 * LastLevelCacheBytes(operands_.device()), kMostBytes);
  operands_.Clear();
  calls_.clear();
  roofs_.Refresh();
  do {
    calls_.push_back(benchmark.prepare(operands_));
    work_ = WorkOf(calls_.back());  // also makes what is made once
  } while (operands_.bytes() < bytes && calls_.size() < kMostSets);
  operands_.device().Synchronize();
  loaded_ = &benchmark;
}

void OpRunner::Run(benchmark::State& state, const OpBenchmark& benchmark) {
  if (loaded_ != &benchmark) Load(benchmark);
  const Clock::time_point begin = Clock::now();
  while (state.KeepRunningBatch(static_cast<int64_t>(calls_.size()))) {
    for (const PreparedOp& call : calls_) call();
    operands_.device().Synchronize();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count() /
                         static_cast<double>(state.iterations());
  const double floor = roofs_.FloorSeconds(work_, benchmark.operands);
  state.counters["floor_us"] = floor * 1e6;
  state.counters["fraction"] = floor / seconds;
  if (roofs_.ArithmeticBound(work_, benchmark.operands)) {
    state.counters["GFLOP/s"] = work_.flops / seconds * 1e-9;
  } else {
    state.counters["GB/s"] = work_.bytes / seconds * 1e-9;
  }
}

}  // namespace twinstream::benchmarks
