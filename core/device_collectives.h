// DeviceNetwork: how the devices of several ranks exchange what is in their memory without the host
// (NCCL). All work is asynchronous to the host, on streams beside the device's; Mark, Await and the
// numbers of started work put the two in order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/device.h"
#include "core/tensor.h"

namespace twinstream {

enum class Reduction { kSum, kMax };

// Bytes to or from a member of a group.
struct DeviceMessage {
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int peer = 0;
};

// A group of ranks, one device each. Members call the same operations in the same order. Each
// operation starts once the device has done what was issued before it, and after the operations of
// this group before it. A failure of the network, or an operation that all its predecessors leave
// waiting for more than the group's timeout, ends the process with the operation's and the group's
// name.
//
// A device that records (Device::Record) takes in what its groups, and a device beside it, do for
// it meanwhile. All that they are given then is to be awaited before it ends, and nothing from
// before.
class DeviceCollectives {
 public:
  using Number = int64_t;  // of a started operation

  virtual ~DeviceCollectives() = default;

  // As Communicator's of the same name, in place; sums in an order of the network's own, and a
  // maximum need not be NaN where a value is. All members get the same bits, and the same bits
  // every time on the same machines.
  virtual Number AllReduce(Tensor inout, Reduction reduction) = 0;
  virtual Number AllGather(Tensor inout, absl::Span<const int64_t> counts) = 0;
  virtual Number ReduceScatter(Tensor inout, absl::Span<const int64_t> counts) = 0;
  // Summed in the order of the ranks.
  virtual Number ReduceScatterAsBFloat16(Tensor inout, absl::Span<const int64_t> counts) = 0;
  virtual Number Broadcast(Tensor inout, int root) = 0;
  // All messages at once: each is met by one of as many bytes on its peer, those of one pair of
  // members in the order given here. A member may send to itself. Nothing else of the group goes on
  // until all have arrived.
  virtual Number Exchange(absl::Span<const DeviceMessage> sent,
                          absl::Span<const DeviceMessage> received) = 0;

  // The device's later work waits for the operation.
  virtual void Await(Number number) = 0;
};

// Sees to it that work of a device which waits for others' ends, where nothing else does: recorded
// work, whose operations nobody sees one by one.
class DeviceWatch {
 public:
  virtual ~DeviceWatch() = default;
  // Around the calls that give the device the work, or that record it. The process ends with `what`
  // and the group's name where all this takes longer than the group's timeout once the device has
  // come to it. what: outlives the watch.
  virtual void Begin(const char* what) = 0;
  virtual void End() = 0;
};

// What the members of a group ask of it, each including what is before it.
enum class GroupWork {
  kMessages,     // Exchange
  kCollectives,  // all but ReduceScatterAsBFloat16
  kRoundedSums,  // ReduceScatterAsBFloat16, which takes memory of the device
};

// The same on every member of a group; made by one of them.
using DeviceGroupId = std::array<std::byte, 128>;

struct DeviceGroup {
  DeviceGroupId id = {};
  int rank = 0, size = 1;
  GroupWork work = GroupWork::kCollectives;
  std::string name;  // for error messages: "tensor"
  double timeout_seconds = 600;
};

class DeviceNetwork {
 public:
  virtual ~DeviceNetwork() = default;
  // Tells this card from every other one. Ranks on one card cannot be members of a group.
  virtual absl::string_view card() const = 0;
  virtual DeviceGroupId NewId() const = 0;
  // Collective. Connects all members, so that later operations never make the host wait.
  virtual std::unique_ptr<DeviceCollectives> Join(const DeviceGroup& group) = 0;

  // Over this device's work for a group, which is named so in messages. The device outlives it.
  virtual std::unique_ptr<DeviceWatch> Watch(const std::string& group, double timeout_seconds) = 0;

  // Another device on the same card, with access to the same memory, whose work goes on beside this
  // one's.
  virtual std::unique_ptr<Device> Beside() = 0;
  // A point in the device's order of work: after what was issued so far.
  virtual int64_t Mark() = 0;
  // Later work of the device waits for what `other`, a device on the same card, had issued before
  // the mark, or some time later where the mark is an old one.
  virtual void Await(DeviceNetwork& other, int64_t mark) = 0;
};

}  // namespace twinstream
