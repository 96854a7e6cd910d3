#include "parallel/device_communicator.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace twinstream {
namespace {

Tensor View(DeviceGroupId& id) {
  return Tensor(id.data(), DType::kI32, {static_cast<int64_t>(id.size() / sizeof(int32_t))});
}

DeviceMessage PartOf(Tensor tensor, RowParts parts, size_t i, int peer) {
  const int64_t row = tensor.dim(0) == 0 ? 0 : tensor.bytes() / tensor.dim(0);
  return {
      .data = tensor.data() + parts.begins[i] * row, .bytes = parts.counts[i] * row, .peer = peer};
}

}  // namespace

// Every rank goes through the routes in the same order, so the two ends of the first one that is
// not connected yet are both at it.
DeviceCommunicator::DeviceCommunicator(std::unique_ptr<Communicator> host, Device& device,
                                       const GroupUse& use, double timeout_seconds)
    : host_(std::move(host)), device_(device) {
  if (use.work != GroupWork::kMessages) group_ = JoinAll(use.work, timeout_seconds);
  for (const Route& route : use.routes) {
    if (route.from != rank() && route.to != rank()) continue;
    links_.push_back({.route = route, .ends = Connect(route, timeout_seconds)});
  }
}

std::unique_ptr<DeviceCollectives> DeviceCommunicator::JoinAll(GroupWork work,
                                                               double timeout_seconds) {
  DeviceGroup group = {.rank = rank(),
                       .size = size(),
                       .work = work,
                       .name = std::string(name()),
                       .timeout_seconds = timeout_seconds};
  if (rank() == 0) group.id = device_.network()->NewId();
  host_->Broadcast(View(group.id), 0);
  return device_.network()->Join(group);
}

std::unique_ptr<DeviceCollectives> DeviceCommunicator::Connect(const Route& route,
                                                               double timeout_seconds) {
  const bool sends = rank() == route.from;
  DeviceGroup pair = {.rank = sends ? 0 : 1,
                      .size = 2,
                      .work = GroupWork::kMessages,
                      .name = absl::StrCat(name(), " from ", route.from, " to ", route.to),
                      .timeout_seconds = timeout_seconds};
  if (sends) {
    pair.id = device_.network()->NewId();
    host_->Wait(host_->Send(View(pair.id), route.to, route.channel));
  } else {
    host_->Receive(View(pair.id), route.from, route.channel);
  }
  return device_.network()->Join(pair);
}

DeviceCollectives& DeviceCommunicator::group() const {
  Check(group_ != nullptr,
        "rank %d of %s is asked for a collective but has messages alone: see parallel/grid_use.cc",
        rank(), name());
  return *group_;
}

void DeviceCommunicator::AllReduce(Tensor inout, Reduction reduction) {
  Finish(group().AllReduce(inout, reduction));
}

void DeviceCommunicator::AllGather(Tensor inout, absl::Span<const int64_t> counts) {
  CheckCounts(inout, counts, size(), "all-gather between devices");
  Finish(group().AllGather(inout, counts));
}

void DeviceCommunicator::ReduceScatter(Tensor inout, absl::Span<const int64_t> counts) {
  CheckCounts(inout, counts, size(), "reduce-scatter between devices");
  Finish(group().ReduceScatter(inout, counts));
}

void DeviceCommunicator::ReduceScatterAsBFloat16(Tensor inout, absl::Span<const int64_t> counts) {
  CheckCounts(inout, counts, size(), "reduce-scatter between devices");
  Finish(group().ReduceScatterAsBFloat16(inout, counts));
}

// What is empty travels on neither side, and what a rank has in its place already stays there.
void DeviceCommunicator::AllToAll(Tensor out, RowParts out_parts, Tensor in, RowParts in_parts) {
  CheckParts(out, out_parts, size(), "all-to-all between devices");
  CheckParts(in, in_parts, size(), "all-to-all between devices");
  sent_.clear();
  received_.clear();
  const size_t parts = in_parts.counts.size() / static_cast<size_t>(size());
  for (size_t i = 0; i < in_parts.counts.size(); ++i) {
    const int peer = static_cast<int>(i / parts);
    const DeviceMessage from = PartOf(in, in_parts, i, peer), to = PartOf(out, out_parts, i, peer);
    if (peer == rank() && from.data == to.data) continue;
    if (from.bytes > 0) sent_.push_back(from);
    if (to.bytes > 0) received_.push_back(to);
  }
  Finish(group().Exchange(sent_, received_));
}

void DeviceCommunicator::Broadcast(Tensor inout, int root) {
  Finish(group().Broadcast(inout, root));
}

void DeviceCommunicator::Barrier() {
  device_.Synchronize();
  host_->Barrier();
}

Ticket DeviceCommunicator::Send(Tensor tensor, int to, Channel channel) {
  const DeviceMessage message = {.data = tensor.data(), .bytes = tensor.bytes(), .peer = 1};
  const Link& link = links_[LinkOf({channel, rank(), to})];
  return TicketOf(link, link.ends->Exchange({message}, {}));
}

void DeviceCommunicator::Receive(Tensor tensor, int from, Channel channel) {
  Wait(StartReceive(tensor, from, channel));
}

Ticket DeviceCommunicator::StartReceive(Tensor tensor, int from, Channel channel) {
  const DeviceMessage message = {.data = tensor.data(), .bytes = tensor.bytes(), .peer = 0};
  const Link& link = links_[LinkOf({channel, from, rank()})];
  return TicketOf(link, link.ends->Exchange({}, {message}));
}

void DeviceCommunicator::Wait(Ticket ticket) {
  const auto links = static_cast<int64_t>(links_.size());
  links_[static_cast<size_t>(ticket.request % links)].ends->Await(ticket.request / links);
}

size_t DeviceCommunicator::LinkOf(const Route& route) const {
  for (size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].route == route) return i;
  }
  Die(absl::StrCat("rank ", rank(), " of ", name(), " has no route from ", route.from, " to ",
                   route.to, " on channel ", static_cast<int>(route.channel)));
}

Ticket DeviceCommunicator::TicketOf(const Link& link, DeviceCollectives::Number number) const {
  const auto links = static_cast<int64_t>(links_.size());
  return {.request = number * links + (&link - links_.data()), .what = "message between devices"};
}

}  // namespace twinstream
