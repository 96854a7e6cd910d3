#include "launch/memory_plan.h"

#include "absl/strings/str_format.h"

namespace twinstream {
namespace {

std::string Size(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? absl::StrFormat("%.1f MiB", mib) : absl::StrFormat("%.2f GiB", mib / 1024);
}

}  // namespace

MemoryPlan& MemoryPlan::operator+=(const MemoryPlan& other) {
  weights += other.weights;
  gradients += other.gradients;
  optimizer += other.optimizer;
  activations += other.activations;
  scratch += other.scratch;
  batch += other.batch;
  return *this;
}

std::string MemoryPlan::ToString() const {
  return absl::StrFormat(
      "weights %s, gradients %s, optimizer %s, activations %s, scratch %s, batch %s: total %s",
      Size(weights), Size(gradients), Size(optimizer), Size(activations), Size(scratch),
      Size(batch), Size(total()));
}

}  // namespace twinstream
