// The calls of the emulated NCCL: what each may ask for, and how those that meet move their data.
// All functions die where NCCL's documentation forbids something.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <string>

#include "absl/types/span.h"

namespace twinstream::gpu {

// A call on one rank.
struct NcclCall {
  enum class Kind { kAllReduce, kAllGather, kReduceScatter, kReduce, kBroadcast, kSend, kReceive };

  Kind kind = Kind::kAllReduce;
  const std::byte* sent = nullptr;
  std::byte* received = nullptr;
  size_t count = 0;  // of elements, as nccl.h counts them
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t reduction = ncclSum;  // of all-reduce, reduce-scatter, reduce
  int peer = 0;                     // the root of reduce and broadcast; the other side of a message
};

const char* NameOf(NcclCall::Kind kind);     // the function's
std::string ToString(const NcclCall& call);  // "ncclReduce of 8 float32, sum, with rank 1"

// A call that rank `rank` of `size` makes, on the current card of its thread.
void CheckCall(const NcclCall& call, int rank, int size);
// All calls of a group, which go on at the same time and each of which has been checked.
void CheckGroup(absl::Span<const NcclCall> calls, int rank, int size);

// A collective: the calls of all ranks, by rank.
void MeetAll(absl::Span<const NcclCall> calls);
// A message of rank `from` to rank `to`.
void MeetPair(const NcclCall& send, const NcclCall& receive, int from, int to);

}  // namespace twinstream::gpu
