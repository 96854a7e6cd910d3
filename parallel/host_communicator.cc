#include "parallel/host_communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "parallel/combine.h"

namespace twinstream {
namespace {

// An all-reduce up to this many bytes, counted over all ranks, goes whole to everybody: one latency
// instead of two.
constexpr int64_t kWholeBytes = 64 << 10;
// Addends on their way into one sum; small enough to stay in the cache until they are summed.
constexpr int64_t kScratchBytes = 2 << 20;

int64_t RowBytes(Tensor tensor) { return tensor.dim(0) == 0 ? 0 : tensor.bytes() / tensor.dim(0); }

}  // namespace

HostCommunicator::HostCommunicator(Transport& transport, GridGroup group, std::vector<int> ranks)
    : transport_(transport),
      group_(group),
      ranks_(std::move(ranks)),
      counts_(ranks_.size()),
      offsets_(ranks_.size()),
      addends_(ranks_.size()) {
  const auto self = std::find(ranks_.begin(), ranks_.end(), transport.rank());
  Check(self != ranks_.end(), "rank %d is not in its own %s group", transport.rank(), name());
  rank_ = static_cast<int>(self - ranks_.begin());
  const std::array<const char*, kOperations + 1> verbs = {"all-reduce",
                                                          "all-gather",
                                                          "reduce-scatter",
                                                          "all-to-all",
                                                          "broadcast",
                                                          "barrier",
                                                          "receive of an activation",
                                                          "receive of a gradient",
                                                          "receive of a tied gradient",
                                                          "receive of data",
                                                          "receive of keys and values",
                                                          "receive of keys' and values' gradients",
                                                          "send"};
  for (size_t i = 0; i < verbs.size(); ++i) what_[i] = absl::StrCat(verbs[i], " over ", name());
}

absl::string_view HostCommunicator::name() const { return NameOf(group_); }

void HostCommunicator::AllReduce(Tensor inout, Reduction reduction) {
  if (size() == 1 || inout.elements() == 0) return;
  if (inout.bytes() * size() <= kWholeBytes) return ExchangeWhole(inout, reduction);
  for (int64_t r = 0; r < size(); ++r) {
    const int64_t n = inout.elements();
    counts_[static_cast<size_t>(r)] = n * (r + 1) / size() - n * r / size();
  }
  ReducePieces(inout, counts_, reduction, kAllReduce);
  GatherPieces(inout, counts_, kAllReduce);
}

void HostCommunicator::AllGather(Tensor inout, absl::Span<const int64_t> counts) {
  CheckCounts(inout, counts, size(), What(kAllGather));
  if (size() > 1) GatherPieces(inout, counts, kAllGather);
}

void HostCommunicator::ReduceScatter(Tensor inout, absl::Span<const int64_t> counts) {
  CheckCounts(inout, counts, size(), What(kReduceScatter));
  if (size() > 1) ReducePieces(inout, counts, Reduction::kSum, kReduceScatter);
}

void HostCommunicator::ReduceScatterAsBFloat16(Tensor inout, absl::Span<const int64_t> counts) {
  CheckCounts(inout, counts, size(), What(kReduceScatter));
  if (size() > 1) ReduceRoundedPieces(inout, counts);
}

void HostCommunicator::AllToAll(Tensor out, RowParts out_parts, Tensor in, RowParts in_parts) {
  CheckParts(out, out_parts, size(), What(kAllToAll));
  CheckParts(in, in_parts, size(), What(kAllToAll));
  const int64_t row = std::max(RowBytes(out), RowBytes(in));  // one may have no rows
  const size_t parts = in_parts.counts.size() / static_cast<size_t>(size());
  const auto of = [parts](int rank, size_t i) { return static_cast<size_t>(rank) * parts + i; };
  const auto place = [row](Tensor tensor, RowParts where, size_t i) {
    return tensor.data() + where.begins[i] * row;
  };
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    for (size_t i = of(r, 0); i < of(r + 1, 0); ++i) {
      PostReceive(place(out, out_parts, i), out_parts.counts[i] * row, r, kAllToAll);
    }
  }
  for (int distance = 1; distance < size(); ++distance) {
    const int to = (rank_ + distance) % size();
    for (size_t i = of(to, 0); i < of(to + 1, 0); ++i) {
      PostSend(place(in, in_parts, i), in_parts.counts[i] * row, to, kAllToAll);
    }
  }
  for (size_t i = of(rank_, 0); i < of(rank_ + 1, 0); ++i) {
    Check(in_parts.counts[i] == out_parts.counts[i], "%s: %d rows for %d of the rank itself",
          What(kAllToAll), in_parts.counts[i], out_parts.counts[i]);
    std::byte* const to = place(out, out_parts, i);
    const std::byte* const from = place(in, in_parts, i);
    const size_t bytes = static_cast<size_t>(in_parts.counts[i] * row);
    if (to != from && bytes > 0) std::memcpy(to, from, bytes);
  }
  WaitAll(kAllToAll);
}

// A binomial tree: the members that have the data double every round.
void HostCommunicator::Broadcast(Tensor inout, int root) {
  Check(0 <= root && root < size(), "broadcast from rank %d of %d", root, size());
  const int distance = (rank_ - root + size()) % size();  // the root's is 0
  int bit = 1;
  while (bit < size() && (distance & bit) == 0) bit *= 2;
  if (distance != 0) {
    PostReceive(inout.data(), inout.bytes(), (rank_ - bit + size()) % size(), kBroadcast);
    WaitAll(kBroadcast);
  }
  for (bit /= 2; bit > 0; bit /= 2) {
    if (distance + bit >= size()) continue;
    PostSend(inout.data(), inout.bytes(), (rank_ + bit) % size(), kBroadcast);
  }
  WaitAll(kBroadcast);
}

// After the round of distance d, a member has heard, through others, of the 2d before it.
void HostCommunicator::Barrier() {
  std::byte out{0}, in{0};
  for (int distance = 1; distance < size(); distance *= 2) {
    PostReceive(&in, 1, (rank_ - distance + size()) % size(), kBarrier);
    PostSend(&out, 1, (rank_ + distance) % size(), kBarrier);
    WaitAll(kBarrier);
  }
}

Ticket HostCommunicator::Send(Tensor tensor, int to, Channel channel) {
  const Transport::Request request = transport_.Send(
      {tensor.data(), static_cast<size_t>(tensor.bytes())}, ranks_.at(static_cast<size_t>(to)),
      Tag(kMessage + static_cast<int>(channel)));
  return {.request = request, .what = What(kSend)};
}

void HostCommunicator::Receive(Tensor tensor, int from, Channel channel) {
  Wait(StartReceive(tensor, from, channel));
}

Ticket HostCommunicator::StartReceive(Tensor tensor, int from, Channel channel) {
  const int operation = kMessage + static_cast<int>(channel);
  const Transport::Request request =
      transport_.Receive({tensor.data(), static_cast<size_t>(tensor.bytes())},
                         ranks_.at(static_cast<size_t>(from)), Tag(operation));
  return {.request = request, .what = What(operation)};
}

void HostCommunicator::Wait(Ticket ticket) { transport_.Wait(ticket.request, ticket.what); }

void HostCommunicator::PostSend(const std::byte* data, int64_t bytes, int to, Operation operation) {
  if (bytes == 0) return;
  requests_.push_back(transport_.Send({data, static_cast<size_t>(bytes)},
                                      ranks_[static_cast<size_t>(to)], Tag(operation)));
}

void HostCommunicator::PostReceive(std::byte* data, int64_t bytes, int from, Operation operation) {
  if (bytes == 0) return;
  requests_.push_back(transport_.Receive({data, static_cast<size_t>(bytes)},
                                         ranks_[static_cast<size_t>(from)], Tag(operation)));
}

void HostCommunicator::WaitAll(Operation operation) {
  for (Transport::Request request : requests_) transport_.Wait(request, What(operation));
  requests_.clear();
}

// Everybody sends everything to everybody and sums it all.
void HostCommunicator::ExchangeWhole(Tensor inout, Reduction reduction) {
  std::byte* const received = Scratch(inout.bytes() * size());
  for (int r = 0; r < size(); ++r) {
    std::byte* const addend = r == rank_ ? inout.data() : received + r * inout.bytes();
    addends_[static_cast<size_t>(r)] = addend;
    if (r != rank_) PostReceive(addend, inout.bytes(), r, kAllReduce);
  }
  for (int distance = 1; distance < size(); ++distance) {
    PostSend(inout.data(), inout.bytes(), (rank_ + distance) % size(), kAllReduce);
  }
  WaitAll(kAllReduce);
  Combine(inout.data(), addends_, inout.elements(), inout.dtype(), reduction);
}

// Every rank receives the others' addends of its own piece and sums them in rank order. In rounds
// of a bounded part of every piece, so that scratch stays small and in the cache.
void HostCommunicator::ReducePieces(Tensor inout, absl::Span<const int64_t> counts,
                                    Reduction reduction, Operation operation) {
  const int64_t element = SizeOf(inout.dtype());
  SetOffsets(counts);
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  const int64_t part = std::min(longest, std::max(kScratchBytes / size(), int64_t{4096}) / element);
  std::byte* const received = Scratch(part * element * size());
  for (int64_t begin = 0; begin < longest; begin += part) {
    const auto part_of = [&](int r) {
      return inout.data() + (offsets_[static_cast<size_t>(r)] + begin) * element;
    };
    const auto elements_of = [&](int r) {
      return std::clamp<int64_t>(counts[static_cast<size_t>(r)] - begin, 0, part);
    };
    const int64_t own = elements_of(rank_);
    for (int r = 0; r < size(); ++r) {
      std::byte* const addend = r == rank_ ? part_of(r) : received + r * part * element;
      addends_[static_cast<size_t>(r)] = addend;
      if (r != rank_) PostReceive(addend, own * element, r, operation);
    }
    // Each starts with another receiver.
    for (int distance = 1; distance < size(); ++distance) {
      const int to = (rank_ + distance) % size();
      PostSend(part_of(to), elements_of(to) * element, to, operation);
    }
    WaitAll(operation);
    Combine(part_of(rank_), addends_, own, inout.dtype(), reduction);
  }
}

// As ReducePieces, by way of two bf16 parts per rank in scratch: the rounded addends for that rank,
// and those from it; the own ones take the place of what would come from this rank.
void HostCommunicator::ReduceRoundedPieces(Tensor inout, absl::Span<const int64_t> counts) {
  constexpr int64_t kElement = sizeof(BFloat16);
  SetOffsets(counts);
  float* const values = inout.As<float>();
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  const int64_t part =
      std::min(longest, std::max(kScratchBytes / (int64_t{2} * size()), int64_t{4096}) / kElement);
  BFloat16* const sent = reinterpret_cast<BFloat16*>(Scratch(2 * part * kElement * size()));
  BFloat16* const received = sent + part * size();
  for (int64_t begin = 0; begin < longest; begin += part) {
    const auto part_of = [&](int r) { return values + offsets_[static_cast<size_t>(r)] + begin; };
    const auto elements_of = [&](int r) {
      return std::clamp<int64_t>(counts[static_cast<size_t>(r)] - begin, 0, part);
    };
    const int64_t own = elements_of(rank_);
    for (int r = 0; r < size(); ++r) {
      std::byte* const addend = reinterpret_cast<std::byte*>(received + r * part);
      addends_[static_cast<size_t>(r)] = addend;
      if (r != rank_) PostReceive(addend, own * kElement, r, kReduceScatter);
    }
    std::copy_n(part_of(rank_), own, received + rank_ * part);
    for (int distance = 1; distance < size(); ++distance) {
      const int to = (rank_ + distance) % size();
      BFloat16* const rounded = sent + to * part;
      std::copy_n(part_of(to), elements_of(to), rounded);
      PostSend(reinterpret_cast<const std::byte*>(rounded), elements_of(to) * kElement, to,
               kReduceScatter);
    }
    WaitAll(kReduceScatter);
    SumBFloat16(part_of(rank_), addends_, own);
  }
}

void HostCommunicator::GatherPieces(Tensor inout, absl::Span<const int64_t> counts,
                                    Operation operation) {
  const int64_t element = SizeOf(inout.dtype());
  SetOffsets(counts);
  const auto piece = [&](int r) {
    return inout.data() + offsets_[static_cast<size_t>(r)] * element;
  };
  const auto bytes = [&](int r) { return counts[static_cast<size_t>(r)] * element; };
  for (int r = 0; r < size(); ++r) {
    if (r != rank_) PostReceive(piece(r), bytes(r), r, operation);
  }
  for (int distance = 1; distance < size(); ++distance) {
    PostSend(piece(rank_), bytes(rank_), (rank_ + distance) % size(), operation);
  }
  WaitAll(operation);
}

void HostCommunicator::SetOffsets(absl::Span<const int64_t> counts) {
  std::exclusive_scan(counts.begin(), counts.end(), offsets_.begin(), int64_t{0});
}

std::byte* HostCommunicator::Scratch(int64_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

}  // namespace twinstream
