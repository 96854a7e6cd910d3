// HostCommunicator: every collective, written once on the point-to-point messages of a Transport.
// All sums go in rank order, whatever the algorithm, the transport and the timing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/grid_shape.h"
#include "parallel/transport.h"

namespace twinstream {

class HostCommunicator final : public Communicator {
 public:
  // ranks: world ranks of the members, in order, transport.rank() among them; the same on every
  // member. Groups of one kind do not overlap; messages of different kinds never mix. `transport`
  // outlives the communicator.
  HostCommunicator(Transport& transport, GridGroup group, std::vector<int> ranks);

  absl::string_view name() const override;
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }

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
  // Each has messages of its own: ranks that disagree about the operation wait for each other and
  // name what they wait in, rather than taking each other's data.
  enum Operation {
    kAllReduce,
    kAllGather,
    kReduceScatter,
    kAllToAll,
    kBroadcast,
    kBarrier,
    kMessage,  // + channel
    kOperations = kMessage + kChannels,
  };
  static constexpr int kSend = kOperations;  // names only: whose receiver has not come

  int Tag(int operation) const { return static_cast<int>(group_) * 64 + operation; }
  const char* What(int operation) const { return what_[static_cast<size_t>(operation)].c_str(); }

  // Requests of the operation under way; WaitAll returns when all are done.
  void PostSend(const std::byte* data, int64_t bytes, int to, Operation operation);
  void PostReceive(std::byte* data, int64_t bytes, int from, Operation operation);
  void WaitAll(Operation operation);

  // The collectives' halves. counts: elements of each rank's piece.
  void ExchangeWhole(Tensor inout, Reduction reduction);
  void ReducePieces(Tensor inout, absl::Span<const int64_t> counts, Reduction reduction,
                    Operation operation);
  void ReduceRoundedPieces(Tensor inout, absl::Span<const int64_t> counts);
  void GatherPieces(Tensor inout, absl::Span<const int64_t> counts, Operation operation);

  void SetOffsets(absl::Span<const int64_t> counts);
  std::byte* Scratch(int64_t bytes);

  Transport& transport_;
  const GridGroup group_;
  const std::vector<int> ranks_;  // world rank of each member
  int rank_ = -1;                 // this one, among the members
  std::array<std::string, kOperations + 1> what_;
  // Of the operation under way, [member]; members of the class so that none allocates.
  std::vector<int64_t> counts_;   // elements of each piece
  std::vector<int64_t> offsets_;  // first element of each piece
  std::vector<Transport::Request> requests_;
  std::vector<const std::byte*> addends_;  // [member]
  std::unique_ptr<std::byte[]> scratch_;   // only grows; at most about 2 MiB
  int64_t scratch_bytes_ = 0;
};

}  // namespace twinstream
