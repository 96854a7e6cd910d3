#include "parallel/staged_communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace twinstream {
namespace {

// All elements of a tensor in one row.
Tensor Flat(Tensor tensor) { return tensor.Reshape({tensor.elements()}); }

// Calls use(rows of a, rows of b) for every part that is not empty.
template <typename F>
void ForEachPart(Tensor a, Tensor b, RowParts parts, F use) {
  for (size_t i = 0; i < parts.begins.size(); ++i) {
    const int64_t begin = parts.begins[i], end = begin + parts.counts[i];
    if (begin < end) use(a.Rows(begin, end), b.Rows(begin, end));
  }
}

// What a group of one rank sends itself: it stays on the device.
void CopyParts(Device& device, Tensor out, RowParts out_parts, Tensor in, RowParts in_parts) {
  constexpr char kWhat[] = "all-to-all of one rank";
  CheckParts(out, out_parts, 1, kWhat);
  CheckParts(in, in_parts, 1, kWhat);
  for (size_t i = 0; i < in_parts.counts.size(); ++i) {
    const int64_t rows = in_parts.counts[i];
    Check(rows == out_parts.counts[i], "%s: %d rows for %d", kWhat, rows, out_parts.counts[i]);
    if (rows == 0) continue;
    const Tensor to = out.Rows(out_parts.begins[i], out_parts.begins[i] + rows);
    const Tensor from = in.Rows(in_parts.begins[i], in_parts.begins[i] + rows);
    if (to.data() != from.data()) device.Copy(to, from);
  }
}

}  // namespace

StagedCommunicator::StagedCommunicator(std::unique_ptr<Communicator> host, Device& device)
    : host_(std::move(host)), device_(device) {}

void StagedCommunicator::AllReduce(Tensor inout, Reduction reduction) {
  if (size() == 1) return;
  const Tensor staged = Like(inout, in_);
  device_.CopyOut(staged.data(), inout);
  host_->AllReduce(staged, reduction);
  device_.CopyIn(inout, staged.data());
}

void StagedCommunicator::AllGather(Tensor inout, absl::Span<const int64_t> counts) {
  if (size() == 1) return;
  const Tensor staged = Like(inout, in_);
  device_.CopyOut(Own(staged, counts).data(), Own(inout, counts));
  host_->AllGather(staged, counts);
  device_.CopyIn(inout, staged.data());
}

void StagedCommunicator::ReduceScatter(Tensor inout, absl::Span<const int64_t> counts) {
  ReduceScatterBy(&Communicator::ReduceScatter, inout, counts);
}

void StagedCommunicator::ReduceScatterAsBFloat16(Tensor inout, absl::Span<const int64_t> counts) {
  ReduceScatterBy(&Communicator::ReduceScatterAsBFloat16, inout, counts);
}

void StagedCommunicator::ReduceScatterBy(ReduceScatterOperation operation, Tensor inout,
                                         absl::Span<const int64_t> counts) {
  if (size() == 1) return;
  const Tensor staged = Like(inout, in_);
  device_.CopyOut(staged.data(), inout);
  ((*host_).*operation)(staged, counts);
  device_.CopyIn(Own(inout, counts), Own(staged, counts).data());
}

// Rows between the parts stay what they are.
void StagedCommunicator::AllToAll(Tensor out, RowParts out_parts, Tensor in, RowParts in_parts) {
  if (size() == 1) return CopyParts(device_, out, out_parts, in, in_parts);
  const Tensor staged_out = Like(out, out_), staged_in = Like(in, in_);
  ForEachPart(staged_in, in, in_parts,
              [this](Tensor to, Tensor from) { device_.CopyOut(to.data(), from); });
  host_->AllToAll(staged_out, out_parts, staged_in, in_parts);
  ForEachPart(out, staged_out, out_parts,
              [this](Tensor to, Tensor from) { device_.CopyIn(to, from.data()); });
}

void StagedCommunicator::Broadcast(Tensor inout, int root) {
  if (size() == 1) return;
  const Tensor staged = Like(inout, in_);
  if (rank() == root) device_.CopyOut(staged.data(), inout);
  host_->Broadcast(staged, root);
  if (rank() != root) device_.CopyIn(inout, staged.data());
}

void StagedCommunicator::Barrier() {
  device_.Synchronize();
  host_->Barrier();
}

Ticket StagedCommunicator::Send(Tensor tensor, int to, Channel channel) {
  const int64_t index = FreeMessage();
  Message& message = messages_[static_cast<size_t>(index)];
  const Tensor staged = Like(tensor, message.buffer);
  message.target = Tensor();
  device_.CopyOut(staged.data(), tensor);
  message.ticket = host_->Send(staged, to, channel);
  return {.request = index, .what = message.ticket.what};
}

void StagedCommunicator::Receive(Tensor tensor, int from, Channel channel) {
  Wait(StartReceive(tensor, from, channel));
}

Ticket StagedCommunicator::StartReceive(Tensor tensor, int from, Channel channel) {
  const int64_t index = FreeMessage();
  Message& message = messages_[static_cast<size_t>(index)];
  message.target = tensor;
  message.ticket = host_->StartReceive(Like(tensor, message.buffer), from, channel);
  return {.request = index, .what = message.ticket.what};
}

void StagedCommunicator::Wait(Ticket ticket) {
  Message& message = messages_.at(static_cast<size_t>(ticket.request));
  Check(message.under_way, "%s is waited for twice", ticket.what);
  host_->Wait(message.ticket);
  if (message.target) device_.CopyIn(message.target, message.buffer.data());
  message.under_way = false;
}

Tensor StagedCommunicator::Like(Tensor tensor, Buffer& buffer) const {
  if (tensor.bytes() > static_cast<int64_t>(buffer.size())) {
    buffer = Buffer();  // not both at once
    buffer = Buffer(device_, tensor.bytes());
  }
  return Tensor(buffer.data(), tensor.dtype(), tensor.shape());
}

Tensor StagedCommunicator::Own(Tensor tensor, absl::Span<const int64_t> counts) const {
  const auto mine = counts.begin() + rank();
  const int64_t begin = std::accumulate(counts.begin(), mine, int64_t{0});
  return Flat(tensor).Rows(begin, begin + *mine);
}

int64_t StagedCommunicator::FreeMessage() {
  const auto is_free = [](const Message& message) { return !message.under_way; };
  auto message = std::find_if(messages_.begin(), messages_.end(), is_free);
  if (message == messages_.end()) message = messages_.emplace(messages_.end());
  message->under_way = true;
  return message - messages_.begin();
}

}  // namespace twinstream
