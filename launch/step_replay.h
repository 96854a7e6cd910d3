// StepReplay: work that is the same in every training step, recorded once and from then on run as a
// whole: on every rank of a job or on none.
#pragma once

#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "core/device.h"
#include "core/device_collectives.h"
#include "parallel/communicator.h"

namespace twinstream {

class StepReplay {
 public:
  // watch: over the device, for `world`; null where the work waits for no other rank's. All
  // arguments outlive this.
  StepReplay(Device& device, Communicator& world, std::unique_ptr<DeviceWatch> watch)
      : device_(device), world_(world), watch_(std::move(watch)) {}

  // Runs what `issue` gives the device: the first call, which is collective, records it. False:
  // some rank's device has refused, so nothing is done anywhere, though `issue` may have been
  // called.
  bool Run(absl::FunctionRef<void()> issue);

 private:
  template <typename F>
  void Watched(const char* what, F f);
  bool Record(absl::FunctionRef<void()> issue);

  Device& device_;
  Communicator& world_;
  const std::unique_ptr<DeviceWatch> watch_;
  std::unique_ptr<RecordedWork> work_;
};

}  // namespace twinstream
