#include "tests/benchmarks/ops/roofs.h"

#include <algorithm>
#include <cmath>

#include "launch/host.h"

namespace twinstream::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kUpdateBytes = int64_t{256} << 20;
constexpr std::chrono::duration<double> kFresh = std::chrono::seconds(5);

}  // namespace

Roofs::Roofs(Operands& memory) : memory_(memory) {}

void Roofs::Refresh() {
  const bool never = bytes_per_second_ == 0;
  // No more than a tenth of the time goes into measuring, however busy the machine is.
  if (never || Clock::now() - measured_ > std::max(kFresh, 10 * measuring_)) Measure();
}

void Roofs::Measure() {
  const Clock::time_point begin = Clock::now();
  bytes_per_second_ = UpdateBytesPerSecond();
  float32_flops_per_second_ = ProductFlopsPerSecond(DType::kF32);
  bf16_flops_per_second_ = ProductFlopsPerSecond(DType::kBF16);
  measured_ = Clock::now();
  measuring_ = measured_ - begin;
}

double Roofs::UpdateBytesPerSecond() {
  const Tensor array = memory_.Random(DType::kF32, {kUpdateBytes / SizeOf(DType::kF32)});
  return 2 * static_cast<double>(kUpdateBytes) /
         BestSeconds([&] { memory_.ops().Scale(array, 1); });
}

double Roofs::ProductFlopsPerSecond(DType dtype) {
  const int64_t extent = PeakExtent(memory_.device());
  const Shape shape = {extent, extent};
  const Tensor a = memory_.Random(dtype, shape), b = memory_.Random(dtype, shape),
               out = memory_.Zeros(dtype, shape);
  return 2 * std::pow(static_cast<double>(extent), 3) /
         BestSeconds([&] { memory_.ops().Matmul(out, a, b, {}); });
}

double Roofs::BestSeconds(absl::FunctionRef<void()> work) {
  constexpr int kTries = 2;
  const auto run = [&] {
    const Clock::time_point begin = Clock::now();
    work();
    memory_.device().Synchronize();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  run();  // wakes the threads, makes what is made once
  double best = run();
  for (int i = 1; i < kTries; ++i) best = std::min(best, run());
  memory_.Clear();
  return best;
}

double Roofs::flops_per_second(DType operands) const {
  return operands == DType::kBF16 ? std::max(bf16_flops_per_second_, float32_flops_per_second_)
                                  : float32_flops_per_second_;
}

bool Roofs::ArithmeticBound(const OpWork& work, DType operands) const {
  return work.flops / flops_per_second(operands) > work.bytes / bytes_per_second_;
}

double Roofs::FloorSeconds(const OpWork& work, DType operands) const {
  return std::max(work.flops / flops_per_second(operands), work.bytes / bytes_per_second_);
}

}  // namespace twinstream::benchmarks
