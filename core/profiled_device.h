// ProfiledDevice: a device that keeps account of the time of its operations. Everything goes on to
// the device within, so results have the same bits.
#pragma once

#include <memory>

#include "core/device.h"
#include "core/op_profile.h"

namespace twinstream {

// While a step of the calling thread is recorded, every operation and copy on the device is awaited
// and timed; otherwise it costs next to nothing. `profile` outlives the device.
std::unique_ptr<Device> MakeProfiledDevice(std::unique_ptr<Device> device, OpProfile& profile);

}  // namespace twinstream
