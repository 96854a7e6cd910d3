// DeviceCommunicator: a communicator for tensors in the memory of devices that a network joins
// (core/device_collectives.h). Nothing but Barrier makes the host wait: what one operation does for
// the next is put in order on the device. The order of sums is the network's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/device.h"
#include "core/device_collectives.h"
#include "parallel/communicator.h"
#include "parallel/grid_use.h"

namespace twinstream {

class DeviceCommunicator final : public Communicator {
 public:
  // Collective over the ranks of `host`, a communicator for memory of the host, by which they meet.
  // Whatever is not in `use` ends the process. Each route is a network group of its own, so that no
  // message waits for one that is not before it on its route. `device` has a network and outlives
  // this.
  DeviceCommunicator(std::unique_ptr<Communicator> host, Device& device, const GroupUse& use,
                     double timeout_seconds);

  absl::string_view name() const override { return host_->name(); }
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  void AllReduce(Tensor inout, Reduction reduction) override;
  void AllGather(Tensor inout, absl::Span<const int64_t> counts) override;
  void ReduceScatter(Tensor inout, absl::Span<const int64_t> counts) override;
  void ReduceScatterAsBFloat16(Tensor inout, absl::Span<const int64_t> counts) override;
  void AllToAll(Tensor out, RowParts out_parts, Tensor in, RowParts in_parts) override;
  void Broadcast(Tensor inout, int root) override;
  void Barrier() override;

  Ticket Send(Tensor tensor, int to, Channel channel) override;
  void Receive(Tensor tensor, int from, Channel channel) override;
  Ticket StartReceive(Tensor tensor, int from, Channel channel) override;
  void Wait(Ticket ticket) override;

 private:
  struct Link {
    Route route;
    std::unique_ptr<DeviceCollectives> ends;  // the sender is its rank 0
  };

  std::unique_ptr<DeviceCollectives> JoinAll(GroupWork work, double timeout_seconds);
  std::unique_ptr<DeviceCollectives> Connect(const Route& route, double timeout_seconds);
  DeviceCollectives& group() const;         // dies where there are messages alone
  size_t LinkOf(const Route& route) const;  // index in links_; dies where there is none
  Ticket TicketOf(const Link& link, DeviceCollectives::Number number) const;
  void Finish(DeviceCollectives::Number number) { group_->Await(number); }

  std::unique_ptr<Communicator> host_;
  Device& device_;
  std::unique_ptr<DeviceCollectives> group_;    // of all members; null: messages alone
  std::vector<Link> links_;                     // of this rank
  std::vector<DeviceMessage> sent_, received_;  // of the all-to-all under way
};

}  // namespace twinstream
