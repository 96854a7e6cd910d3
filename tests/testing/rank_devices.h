// The device of each rank of a test.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/device.h"
#include "core/device_collectives.h"
#include "parallel/thread_transport.h"

namespace twinstream::testing {

// Called on the rank's own thread.
using DeviceMaker = std::function<std::unique_ptr<Device>(int rank)>;

DeviceMaker CpuDevices();

// Where ranks that are threads of one process meet: a network of devices that is not one.
class ThreadNetworkHub {
 public:
  DeviceGroupId NewId();
  // The same for every member of the group.
  ThreadHub& Meet(const DeviceGroup& group);
  int groups() const { return static_cast<int>(meetings_.size()); }
  int groups(GroupWork work) const;

 private:
  struct Meeting {
    GroupWork work;
    std::unique_ptr<ThreadHub> hub;
  };

  std::mutex mutex_;
  int64_t ids_ = 0;
  std::map<DeviceGroupId, Meeting> meetings_;
};

// `device` as one whose memory the host may not touch. hub: null for a device without a network;
// else it outlives the device. Sums of this network are in rank order. card: DeviceNetwork::card,
// with so much memory left.
std::unique_ptr<Device> MakeRemoteDevice(std::unique_ptr<Device> device, ThreadNetworkHub* hub,
                                         const std::string& card, int64_t free_bytes = 0);
// CPU devices as such, each on a card of its own.
DeviceMaker RemoteCpuDevices(ThreadNetworkHub* hub);

// Memory at addresses where there is none: only the device's copies find it. Has no operations.
std::unique_ptr<Device> MakeUntouchableDevice();

}  // namespace twinstream::testing
