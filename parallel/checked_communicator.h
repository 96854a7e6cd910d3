// CheckedCommunicator: another communicator whose members first tell each other what they are about
// to do: a collective that not all of them call alike ends the job with both calls' names instead
// of a hang or garbage. For debug builds: it costs a small all-gather per collective.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/communicator.h"

namespace twinstream {

class CheckedCommunicator final : public Communicator {
 public:
  explicit CheckedCommunicator(std::unique_ptr<Communicator> communicator);

  absl::string_view name() const override { return communicator_->name(); }
  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }

  void AllReduce(Tensor inout, Reduction reduction) override;
  void AllGather(Tensor inout, absl::Span<const int64_t> counts) override;
  void ReduceScatter(Tensor inout, absl::Span<const int64_t> counts) override;
  void ReduceScatterAsBFloat16(Tensor inout, absl::Span<const int64_t> counts) override;
  void AllToAll(Tensor out, RowParts out_parts, Tensor in, RowParts in_parts) override;
  void Broadcast(Tensor inout, int root) override;
  void Barrier() override;

  // Two ranks' business: a message names its size, and waits name their peer, without this.
  Ticket Send(Tensor tensor, int to, Channel channel) override {
    return communicator_->Send(tensor, to, channel);
  }
  void Receive(Tensor tensor, int from, Channel channel) override {
    communicator_->Receive(tensor, from, channel);
  }
  Ticket StartReceive(Tensor tensor, int from, Channel channel) override {
    return communicator_->StartReceive(tensor, from, channel);
  }
  void Wait(Ticket ticket) override { communicator_->Wait(ticket); }

 private:
  enum class Call {
    kAllReduce,
    kAllGather,
    kReduceScatter,
    kReduceScatterAsBFloat16,
    kAllToAll,
    kBroadcast,
    kBarrier
  };
  static constexpr int64_t kWords = 4;  // call, dtype, argument, elements: one rank's

  static const char* NameOf(Call call);
  std::string Describe(int rank) const;
  // Dies, on every member, unless all call alike. argument: the reduction, the root, or a digest of
  // the counts. elements 0: they may differ.
  void Agree(Call call, DType dtype, int64_t argument, int64_t elements);

  std::unique_ptr<Communicator> communicator_;
  std::vector<int32_t> words_;   // [size][kWords]
  std::vector<int64_t> counts_;  // of the all-gather of words_
  int64_t calls_ = 0;            // of collectives here
};

}  // namespace twinstream
