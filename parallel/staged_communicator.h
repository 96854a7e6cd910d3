// StagedCommunicator: a communicator for tensors in a device's memory by way of the host's: what
// other ranks need is copied into buffers, the communicator within works on these, and what this
// rank needs is copied back. Ranks may share a device. Same bits as the communicator within.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/device.h"
#include "parallel/communicator.h"

namespace twinstream {

class StagedCommunicator final : public Communicator {
 public:
  // host: for memory of the host. `device` outlives this.
  StagedCommunicator(std::unique_ptr<Communicator> host, Device& device);

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
  using Buffer = HostArray<std::byte>;  // only grows
  // A message under way, or a place for one.
  struct Message {
    Buffer buffer;
    bool under_way = false;
    Ticket ticket;  // of the communicator within
    Tensor target;  // what is received goes there
  };

  using ReduceScatterOperation = void (Communicator::*)(Tensor, absl::Span<const int64_t>);

  // A tensor like this one in the buffer, whose former contents are lost.
  Tensor Like(Tensor tensor, Buffer& buffer) const;
  // The part of `tensor` that is this rank's piece.
  Tensor Own(Tensor tensor, absl::Span<const int64_t> counts) const;
  // operation: the communicator within's.
  void ReduceScatterBy(ReduceScatterOperation operation, Tensor inout,
                       absl::Span<const int64_t> counts);
  // One that was not under way, and is now; its index is the ticket's request.
  int64_t FreeMessage();

  std::unique_ptr<Communicator> host_;
  Device& device_;
  Buffer in_, out_;  // of the operation under way
  std::vector<Message> messages_;
};

}  // namespace twinstream
