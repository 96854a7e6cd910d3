#include "core/cuda/emulated/nccl_clique.h"

#include <algorithm>

#include "core/check.h"

namespace twinstream::gpu {
namespace {

NcclCall TakeFirst(std::deque<NcclCall>* calls) {
  const NcclCall first = calls->front();
  calls->pop_front();
  return first;
}

}  // namespace

void NcclClique::Join(int rank, int size, int card) {
  const std::lock_guard lock(mutex_);
  if (members_.empty()) members_.resize(static_cast<size_t>(size));
  Check(members_.size() == static_cast<size_t>(size),
        "ncclCommInitRank: rank %d is one of %d ranks, and others are of %d", rank, size,
        members_.size());
  Check(At(rank).card == -1, "ncclCommInitRank: rank %d has come already", rank);
  for (int r = 0; r < size; ++r) {
    Check(At(r).card != card, "ncclCommInitRank: rank %d and rank %d are both on card %d", r, rank,
          card);
  }
  At(rank).card = card;
  ++joined_;
  is_complete_ = joined_ == size;
}

bool NcclClique::Leave() {
  const std::lock_guard lock(mutex_);
  ++left_;
  return left_ == joined_;
}

void NcclClique::Meet(int rank, int peer) {
  const std::lock_guard lock(mutex_);
  met_.insert({rank, peer});
}

bool NcclClique::HaveMet(int rank, int peer) {
  const std::lock_guard lock(mutex_);
  return met_.count({rank, peer}) > 0 && met_.count({peer, rank}) > 0;
}

void NcclClique::Begin(int rank, absl::Span<const NcclCall> calls) {
  const std::lock_guard lock(mutex_);
  Member& member = At(rank);
  Check(!member.in_group,
        "%s on rank %d while other calls of its communicator are under way, from another stream: "
        "that is not emulated",
        NameOf(calls[0].kind), rank);
  member.in_group = true;
  member.under_way = static_cast<int64_t>(calls.size());
  for (const NcclCall& call : calls) {
    switch (call.kind) {
      case NcclCall::Kind::kSend:
        messages_[{rank, call.peer}].sends.push_back(call);
        MeetMessages(rank, call.peer);
        break;
      case NcclCall::Kind::kReceive:
        messages_[{call.peer, rank}].receives.push_back(call);
        MeetMessages(call.peer, rank);
        break;
      default:
        member.collectives.push_back(call);
        MeetCollectives();
    }
  }
}

bool NcclClique::IsDone(int rank) {
  const std::lock_guard lock(mutex_);
  Member& member = At(rank);
  if (member.under_way > 0) return false;
  member.in_group = false;
  return true;
}

void NcclClique::MeetCollectives() {
  const bool all_are_here = std::all_of(members_.begin(), members_.end(), [](const Member& member) {
    return !member.collectives.empty();
  });
  if (!all_are_here) return;
  std::vector<NcclCall> calls;
  for (Member& member : members_) {
    calls.push_back(TakeFirst(&member.collectives));
    --member.under_way;
  }
  MeetAll(calls);
}

void NcclClique::MeetMessages(int from, int to) {
  Messages& messages = messages_[{from, to}];
  if (messages.sends.empty() || messages.receives.empty()) return;
  MeetPair(TakeFirst(&messages.sends), TakeFirst(&messages.receives), from, to);
  --At(from).under_way;
  --At(to).under_way;
}

}  // namespace twinstream::gpu
