#include "tests/testing/uploaded_communicator.h"

namespace twinstream::testing {

void UploadedCommunicator::AllReduce(Tensor inout, Reduction reduction) {
  Upload upload(device_);
  upload.Add({&inout});
  communicator_.AllReduce(inout, reduction);
}

void UploadedCommunicator::AllGather(Tensor inout, absl::Span<const int64_t> counts) {
  Upload upload(device_);
  upload.Add({&inout});
  communicator_.AllGather(inout, counts);
}

void UploadedCommunicator::ReduceScatter(Tensor inout, absl::Span<const int64_t> counts) {
  Upload upload(device_);
  upload.Add({&inout});
  communicator_.ReduceScatter(inout, counts);
}

void UploadedCommunicator::ReduceScatterAsBFloat16(Tensor inout, absl::Span<const int64_t> counts) {
  Upload upload(device_);
  upload.Add({&inout});
  communicator_.ReduceScatterAsBFloat16(inout, counts);
}

void UploadedCommunicator::AllToAll(Tensor out, RowParts out_parts, Tensor in, RowParts in_parts) {
  Upload upload(device_);
  upload.Add({&out, &in});
  communicator_.AllToAll(out, out_parts, in, in_parts);
}

void UploadedCommunicator::Broadcast(Tensor inout, int root) {
  Upload upload(device_);
  upload.Add({&inout});
  communicator_.Broadcast(inout, root);
}

Ticket UploadedCommunicator::Send(Tensor tensor, int to, Channel channel) {
  Message& message = messages_.try_emplace(++started_, device_).first->second;
  message.upload.Add({&tensor});
  message.ticket = communicator_.Send(tensor, to, channel);
  return {.request = started_, .what = message.ticket.what};
}

void UploadedCommunicator::Receive(Tensor tensor, int from, Channel channel) {
  Wait(StartReceive(tensor, from, channel));
}

Ticket UploadedCommunicator::StartReceive(Tensor tensor, int from, Channel channel) {
  Message& message = messages_.try_emplace(++started_, device_).first->second;
  message.upload.Add({&tensor});
  message.ticket = communicator_.StartReceive(tensor, from, channel);
  return {.request = started_, .what = message.ticket.what};
}

void UploadedCommunicator::Wait(Ticket ticket) {
  Message& message = messages_.at(ticket.request);
  communicator_.Wait(message.ticket);
  message.upload.CopyBack();
  if (++ended_ == started_) messages_.clear();
}

}  // namespace twinstream::testing
