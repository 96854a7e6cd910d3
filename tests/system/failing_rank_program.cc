// A job that fails as its argument says, for failure_test.sh: all ranks all-reduce for ever, until
// something happens to rank 1, on its main thread or in an operation that it posted.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/check.h"
#include "core/device.h"
#include "core/ops.h"
#include "launch/runtime.h"
#include "parallel/communication_thread.h"

namespace {

void HappensToRank1(absl::string_view what, twinstream::CommunicationThread& communication) {
  using twinstream::Check;
  Check(what != "check", "%d rows do not divide over %d ranks", 5, 2);
  if (what == "exception") throw std::runtime_error("out of luck");
  if (what == "segfault") raise(SIGSEGV);
  if (what == "kill") raise(SIGKILL);
  if (what == "hang") pause();
  static const twinstream::CommunicationThread::Operation fails = [](twinstream::Range items) {
    Check(items.size() == 2, "%d rows do not divide over %d ranks", items.size(), 2);
  };
  if (what == "posted") communication.Post("reduction of gradients", fails, {0, 5});
}

// Matrix products of the shape for which oneDNN puts its stack on the heap, in the midst of
// signals.
void MultiplyUnderSignals() {
  const auto device = *twinstream::MakeDevice("cpu", {.threads = 1});
  const std::vector<twinstream::TensorSpec> specs = {{"a", twinstream::DType::kF32, {256, 2048}},
                                                     {"b", twinstream::DType::kF32, {2048, 64}},
                                                     {"out", twinstream::DType::kF32, {256, 64}}};
  const twinstream::Storage memory(*device, twinstream::BytesFor(specs));
  const std::vector<twinstream::Tensor> tensors = twinstream::TensorsIn(memory.data(), specs);
  const std::vector<float> ones(1024 * 2048, 1.0F);
  for (const twinstream::Tensor& operand : {tensors[0], tensors[1]}) {
    device->CopyIn(operand, ones.data());
  }
  std::vector<float> products(static_cast<size_t>(tensors[2].elements()));
  const std::jthread sender([](const std::stop_token& end) {
    for (; !end.stop_requested(); usleep(100)) kill(getpid(), SIGUSR1);
  });
  for (int i = 0; i < 3000; ++i) {
    device->ops().Matmul(tensors[2], tensors[0], tensors[1], {});
    device->CopyOut(products.data(), tensors[2]);
    for (float product : products) twinstream::Check(product == 2048, "a product is %g", product);
  }
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): one of the failures
int main(int argc, char** argv) {
  twinstream::Runtime runtime(argc, argv);
  runtime.CatchStopSignals();
  const absl::string_view what = argc > 1 ? argv[1] : "";
  runtime.SetTimeout(what == "hang" ? 2 : 600);
  runtime.SetPlaces([](int rank) { return absl::StrCat("stage ", rank); });
  if (what == "stop" && runtime.rank() == 0) kill(getpid(), SIGUSR1);
  if (what == "products") MultiplyUnderSignals();
  twinstream::CommunicationThread communication(twinstream::Overlap::kOn, {.data = runtime.size()},
                                                runtime.transport());
  communication.Reserve(1);
  for (int step = 0;; ++step) {
    const twinstream::ActivityScope doing("step", step);
    if (step == 3 && runtime.rank() == runtime.size() / 2) HappensToRank1(what, communication);
    int32_t stop = runtime.stop_requested() ? 1 : 0;
    runtime.world().AllReduce(
        twinstream::Tensor(reinterpret_cast<std::byte*>(&stop), twinstream::DType::kI32, {}),
        twinstream::Reduction::kMax);
    if (stop) return 3;
    usleep(1000);
  }
}
