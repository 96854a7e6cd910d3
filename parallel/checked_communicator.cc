#include "parallel/checked_communicator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/crc32c.h"

namespace twinstream {
namespace {

int64_t DigestOf(absl::Span<const int64_t> counts) {
  return ExtendCrc32c(
      0, {reinterpret_cast<const std::byte*>(counts.data()), counts.size() * sizeof(int64_t)});
}

}  // namespace

CheckedCommunicator::CheckedCommunicator(std::unique_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)),
      words_(static_cast<size_t>(communicator_->size() * kWords)),
      counts_(static_cast<size_t>(communicator_->size()), kWords) {}

const char* CheckedCommunicator::NameOf(Call call) {
  switch (call) {
    case Call::kAllReduce:
      return "all-reduce";
    case Call::kAllGather:
      return "all-gather";
    case Call::kReduceScatter:
      return "reduce-scatter";
    case Call::kReduceScatterAsBFloat16:
      return "reduce-scatter as bf16";
    case Call::kAllToAll:
      return "all-to-all";
    case Call::kBroadcast:
      return "broadcast";
    case Call::kBarrier:
      return "barrier";
  }
  Die("unknown collective");
}

// "reduce-scatter of 100 x F32 (argument 17)"
std::string CheckedCommunicator::Describe(int rank) const {
  const int32_t* words = &words_[static_cast<size_t>(rank * kWords)];
  return absl::StrFormat("%s of %d x %s (argument %d)", NameOf(static_cast<Call>(words[0])),
                         words[3], twinstream::NameOf(static_cast<DType>(words[1])), words[2]);
}

void CheckedCommunicator::Agree(Call call, DType dtype, int64_t argument, int64_t elements) {
  ++calls_;
  const int self = rank();
  int32_t* mine = &words_[static_cast<size_t>(self * kWords)];
  mine[0] = static_cast<int32_t>(call);
  mine[1] = static_cast<int32_t>(dtype);
  mine[2] = static_cast<int32_t>(argument);
  mine[3] = static_cast<int32_t>(elements);
  communicator_->AllGather(Tensor(reinterpret_cast<std::byte*>(words_.data()), DType::kI32,
                                  Shape{static_cast<int64_t>(words_.size())}),
                           counts_);
  for (int r = 0; r < size(); ++r) {
    const int32_t* other = &words_[static_cast<size_t>(r * kWords)];
    Check(std::equal(mine, mine + kWords, other),
          "collective %d over %s: member %d calls %s, but member %d calls %s", calls_, name(), self,
          Describe(self), r, Describe(r));
  }
}

void CheckedCommunicator::AllReduce(Tensor inout, Reduction reduction) {
  Agree(Call::kAllReduce, inout.dtype(), static_cast<int64_t>(reduction), inout.elements());
  communicator_->AllReduce(inout, reduction);
}

void CheckedCommunicator::AllGather(Tensor inout, absl::Span<const int64_t> counts) {
  Agree(Call::kAllGather, inout.dtype(), DigestOf(counts), inout.elements());
  communicator_->AllGather(inout, counts);
}

void CheckedCommunicator::ReduceScatter(Tensor inout, absl::Span<const int64_t> counts) {
  Agree(Call::kReduceScatter, inout.dtype(), DigestOf(counts), inout.elements());
  communicator_->ReduceScatter(inout, counts);
}

void CheckedCommunicator::ReduceScatterAsBFloat16(Tensor inout, absl::Span<const int64_t> counts) {
  Agree(Call::kReduceScatterAsBFloat16, inout.dtype(), DigestOf(counts), inout.elements());
  communicator_->ReduceScatterAsBFloat16(inout, counts);
}

// Each pair of members knows its own parts.
void CheckedCommunicator::AllToAll(Tensor out, RowParts out_parts, Tensor in, RowParts in_parts) {
  Agree(Call::kAllToAll, out.dtype(), 0, 0);
  communicator_->AllToAll(out, out_parts, in, in_parts);
}

void CheckedCommunicator::Broadcast(Tensor inout, int root) {
  Agree(Call::kBroadcast, inout.dtype(), root, inout.elements());
  communicator_->Broadcast(inout, root);
}

void CheckedCommunicator::Barrier() {
  Agree(Call::kBarrier, DType::kI32, 0, 0);
  communicator_->Barrier();
}

}  // namespace twinstream
