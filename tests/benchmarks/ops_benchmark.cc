// ops_benchmark: time, floor and their ratio of every operation that a training step takes, by
// Google Benchmark and with its flags. docs/performance.md says how to read it.
#include <iostream>

#include "absl/strings/str_cat.h"
#include "core/profiled_device.h"
#include "tests/benchmarks/ops/op_runner.h"
#include "tests/testing/vectors.h"

namespace twinstream::benchmarks {
namespace {

using Family = std::vector<OpBenchmark> (*)(const OpShape& shape, DType activation);
constexpr Family kFamilies[] = {ProductBenchmarks, ResidualBenchmarks,   AttentionBenchmarks,
                                MoeBenchmarks,     VocabularyBenchmarks, ElementwiseBenchmarks};

// Named operation/shape/activations: "Matmul/qkv/forward/M/F32".
std::vector<OpBenchmark> AllBenchmarks() {
  std::vector<OpBenchmark> all;
  for (const OpShape& shape : OpShapes()) {
    for (const DType activation : testing::kActivationTypes) {
      for (const Family family : kFamilies) {
        for (OpBenchmark& benchmark : family(shape, activation)) {
          absl::StrAppend(&benchmark.name, "/", shape.name, "/", NameOf(activation));
          all.push_back(std::move(benchmark));
        }
      }
    }
  }
  return all;
}

void PrintRoofs(const Roofs& roofs) {
  const auto print = [](const char* name, double per_second) {
    benchmark::AddCustomContext(name, absl::StrFormat("%.1f", per_second * 1e-9));
  };
  print("in-place update, GB/s", roofs.bytes_per_second());
  print("float32 product, GFLOP/s", roofs.flops_per_second(DType::kF32));
  print("bf16 product, GFLOP/s", roofs.flops_per_second(DType::kBF16));
}

int Run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  if (benchmark::GetBenchmarkFilter().empty()) benchmark::SetBenchmarkFilter("/M/");

  absl::StatusOr<std::unique_ptr<Device>> bare = MakeDevice("cpu");
  Check(bare.ok(), "%s", bare.status().ToString());
  OpProfile profile;
  const std::unique_ptr<Device> device = MakeProfiledDevice(*std::move(bare), profile);
  OpRunner runner(*device, profile);
  PrintRoofs(runner.roofs());
  const std::vector<OpBenchmark> benchmarks = AllBenchmarks();
  for (const OpBenchmark& op : benchmarks) {
    benchmark::RegisterBenchmark(op.name.c_str(),
                                 [&](benchmark::State& state) { runner.Run(state, op); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  const size_t run = benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return run == 0 ? 1 : 0;  // the filter's pattern matches no name: Google Benchmark has said so
}

}  // namespace
}  // namespace twinstream::benchmarks

int main(int argc, char** argv) { return twinstream::benchmarks::Run(argc, argv); }
