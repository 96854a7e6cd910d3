// UploadedCommunicator: a communicator for tensors of a device, for tests whose tensors are in host
// memory: every operation copies its tensors to the device, each into an allocation of its own, and
// back afterwards.
#pragma once

#include <cstdint>
#include <map>

#include "core/device.h"
#include "parallel/communicator.h"
#include "tests/testing/upload.h"

namespace twinstream::testing {

class UploadedCommunicator final : public Communicator {
 public:
  // Both outlive this.
  UploadedCommunicator(Communicator& communicator, Device& device)
      : communicator_(communicator), device_(device) {}

  absl::string_view name() const override { return communicator_.name(); }
  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }

  void AllReduce(Tensor inout, Reduction reduction) override;
  void AllGather(Tensor inout, absl::Span<const int64_t> counts) override;
  void ReduceScatter(Tensor inout, absl::Span<const int64_t> counts) override;
  void ReduceScatterAsBFloat16(Tensor inout, absl::Span<const int64_t> counts) override;
  void AllToAll(Tensor out, RowParts out_parts, Tensor in, RowParts in_parts) override;
  void Broadcast(Tensor inout, int root) override;
  void Barrier() override { communicator_.Barrier(); }

  Ticket Send(Tensor tensor, int to, Channel channel) override;
  void Receive(Tensor tensor, int from, Channel channel) override;
  Ticket StartReceive(Tensor tensor, int from, Channel channel) override;
  void Wait(Ticket ticket) override;

 private:
  struct Message {
    explicit Message(Device& device) : upload(device) {}
    Upload upload;
    Ticket ticket;
  };

  Communicator& communicator_;
  Device& device_;
  // By ticket, until none is under way: a device may free memory only when all its work is done.
  std::map<int64_t, Message> messages_;
  int64_t started_ = 0, ended_ = 0;
};

}  // namespace twinstream::testing
