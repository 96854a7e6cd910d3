// ops_benchmark: time, floor and their ratio of every operation that a training step takes, by
// Google Benchmark and with its flags, on the device that --device names (cpu or cuda).
// docs/performance.md says how to read it.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/profiled_device.h"
#include "tests/benchmarks/ops/op_runner.h"
#include "tests/testing/vectors.h"

namespace twinstream::benchmarks {
namespace {

using Family = std::vector<OpBenchmark> (*)(const OpShape& shape, DType activation);
constexpr Family kFamilies[] = {ProductBenchmarks, ResidualBenchmarks,   AttentionBenchmarks,
                                MoeBenchmarks,     VocabularyBenchmarks, ElementwiseBenchmarks};

// Named operation/shape/activations: "Matmul/qkv/forward/M/F32".
std::vector<OpBenchmark> AllBenchmarks(const Device& device) {
  std::vector<OpBenchmark> all;
  for (const OpShape& shape : OpShapes(device)) {
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

// The usual reporter, whose head names the roofs. It is asked for its head only when a benchmark is
// about to run, so that lists and mistaken filters measure nothing.
class RoofsReporter final : public benchmark::BenchmarkReporter {
 public:
  explicit RoofsReporter(OpRunner& runner)
      : runner_(runner), usual_(benchmark::CreateDefaultDisplayReporter()) {}

  bool ReportContext(const Context& context) override {
    const Roofs& roofs = runner_.MeasureRoofs();
    AddRoof("in-place update, GB/s", roofs.bytes_per_second());
    AddRoof("float32 product, GFLOP/s", roofs.flops_per_second(DType::kF32));
    AddRoof("bf16 product, GFLOP/s", roofs.flops_per_second(DType::kBF16));
    return usual_->ReportContext(context);
  }
  void ReportRuns(const std::vector<Run>& runs) override { usual_->ReportRuns(runs); }
  void Finalize() override { usual_->Finalize(); }

 private:
  static void AddRoof(const char* name, double per_second) {
    benchmark::AddCustomContext(name, absl::StrFormat("%.1f", per_second * 1e-9));
  }

  OpRunner& runner_;
  const std::unique_ptr<benchmark::BenchmarkReporter> usual_;
};

// Takes --device=NAME out of the arguments that Google Benchmark does not know.
std::string TakeDevice(int* argc, char** argv) {
  std::string name = "cpu";
  const auto kept = std::remove_if(argv + 1, argv + *argc, [&](absl::string_view argument) {
    const bool is_device = absl::ConsumePrefix(&argument, "--device=");
    if (is_device) name = std::string(argument);
    return is_device;
  });
  *argc = static_cast<int>(kept - argv);
  return name;
}

int Run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const std::string device_name = TakeDevice(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  if (benchmark::GetBenchmarkFilter().empty()) benchmark::SetBenchmarkFilter("/M/");

  absl::StatusOr<std::unique_ptr<Device>> bare = MakeDevice(device_name);
  if (!bare.ok()) {
    std::cerr << "ops_benchmark: --device=" << device_name << ": " << bare.status().message()
              << std::endl;
    return 2;
  }
  OpProfile profile;
  const std::unique_ptr<Device> device = MakeProfiledDevice(*std::move(bare), profile);
  OpRunner runner(*device, profile);
  const std::vector<OpBenchmark> benchmarks = AllBenchmarks(*device);
  for (const OpBenchmark& op : benchmarks) {
    benchmark::RegisterBenchmark(op.name.c_str(),
                                 [&](benchmark::State& state) { runner.Run(state, op); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  RoofsReporter reporter(runner);
  const size_t run = benchmark::RunSpecifiedBenchmarks(&reporter);
  benchmark::Shutdown();
  return run == 0 ? 1 : 0;  // the filter's pattern matches no name: Google Benchmark has said so
}

}  // namespace
}  // namespace twinstream::benchmarks

int main(int argc, char** argv) { return twinstream::benchmarks::Run(argc, argv); }
