#include "core/cuda/emulated/nccl_calls.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/bfloat16.h"
#include "core/check.h"
#include "core/cuda/emulated/streams.h"

namespace twinstream::gpu {
namespace {

using Kind = NcclCall::Kind;

size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    case ncclFloat64:
      return 8;
  }
  Die(absl::StrFormat("NCCL's data type %d is not emulated", static_cast<int>(type)));
}

const char* NameOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return "int8";
    case ncclBfloat16:
      return "bfloat16";
    case ncclInt32:
      return "int32";
    case ncclFloat32:
      return "float32";
    case ncclFloat64:
      return "float64";
  }
  return "elements of an unknown type";
}

bool Reduces(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduceScatter || kind == Kind::kReduce;
}
bool HasPeer(Kind kind) {
  return kind == Kind::kReduce || kind == Kind::kBroadcast || kind == Kind::kSend ||
         kind == Kind::kReceive;
}

// Bytes in memory. Without any, `begin` may be anything.
struct Range {
  const std::byte* begin = nullptr;
  size_t bytes = 0;
};

bool Overlap(Range a, Range b) {
  return a.bytes > 0 && b.bytes > 0 && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

Range ReadBy(const NcclCall& call, int rank, int size) {
  size_t elements = call.count;
  if (call.kind == Kind::kReduceScatter) elements *= static_cast<size_t>(size);
  if (call.kind == Kind::kBroadcast && call.peer != rank) elements = 0;
  if (call.kind == Kind::kReceive) elements = 0;
  return {call.sent, elements * SizeOf(call.type)};
}

Range WrittenBy(const NcclCall& call, int rank, int size) {
  size_t elements = call.count;
  if (call.kind == Kind::kAllGather) elements *= static_cast<size_t>(size);
  if (call.kind == Kind::kReduce && call.peer != rank) elements = 0;
  if (call.kind == Kind::kSend) elements = 0;
  return {call.received, elements * SizeOf(call.type)};
}

bool IsInPlace(const NcclCall& call, int rank) {
  const size_t own_piece = static_cast<size_t>(rank) * call.count * SizeOf(call.type);
  if (call.kind == Kind::kAllGather) return call.sent == call.received + own_piece;
  if (call.kind == Kind::kReduceScatter) return call.received == call.sent + own_piece;
  return call.sent == call.received;
}

void CheckBuffer(Range range, const NcclCall& call, int rank) {
  if (range.bytes == 0) return;
  if (range.begin == nullptr) {
    Die(absl::StrFormat("%s on rank %d: a buffer is null", ToString(call), rank));
  }
  if (reinterpret_cast<uintptr_t>(range.begin) % SizeOf(call.type) != 0) {
    Die(absl::StrFormat("%s on rank %d: a buffer is not aligned to an element", ToString(call),
                        rank));
  }
  CheckOfCurrentCard(range.begin, range.bytes, NameOf(call.kind));
}

// As the card adds, without overflow.
int32_t Add(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
float Add(float a, float b) { return a + b; }
double Add(double a, double b) { return a + b; }

// As NCCL's: of a number and NaN, the number.
int32_t Larger(int32_t a, int32_t b) { return std::max(a, b); }
float Larger(float a, float b) { return std::fmax(a, b); }
double Larger(double a, double b) { return std::fmax(a, b); }

// Over the ranks in their order. Sum: the type that it is computed in.
template <typename Element, typename Sum>
void ReduceAs(absl::Span<const NcclCall> calls, size_t elements, std::byte* result) {
  for (size_t i = 0; i < elements; ++i) {
    const auto addend = [i](const NcclCall& call) -> Sum {
      return reinterpret_cast<const Element*>(call.sent)[i];
    };
    Sum sum = addend(calls[0]);
    for (const NcclCall& call : calls.subspan(1)) {
      sum = call.reduction == ncclMax ? Larger(sum, addend(call)) : Add(sum, addend(call));
    }
    reinterpret_cast<Element*>(result)[i] = sum;
  }
}

std::vector<std::byte> Reduced(absl::Span<const NcclCall> calls) {
  const ncclDataType_t type = calls[0].type;
  const size_t bytes = ReadBy(calls[0], /*rank=*/0, static_cast<int>(calls.size())).bytes;
  const size_t elements = bytes / SizeOf(type);
  std::vector<std::byte> result(bytes);
  if (type == ncclFloat32) ReduceAs<float, float>(calls, elements, result.data());
  if (type == ncclFloat64) ReduceAs<double, double>(calls, elements, result.data());
  if (type == ncclInt32) ReduceAs<int32_t, int32_t>(calls, elements, result.data());
  if (type == ncclBfloat16) ReduceAs<BFloat16, float>(calls, elements, result.data());
  return result;
}

// What a collective makes of all that is sent: a reduction, or one rank's after another's.
std::vector<std::byte> ResultOf(absl::Span<const NcclCall> calls) {
  if (Reduces(calls[0].kind)) return Reduced(calls);
  const int size = static_cast<int>(calls.size());
  std::vector<std::byte> result;
  for (int r = 0; r < size; ++r) {
    const Range sent = ReadBy(calls[static_cast<size_t>(r)], r, size);
    if (sent.bytes > 0) result.insert(result.end(), sent.begin, sent.begin + sent.bytes);
  }
  return result;
}

bool IsSameCollective(const NcclCall& a, const NcclCall& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.reduction == b.reduction &&
         a.peer == b.peer;
}

[[noreturn]] void DieOfMismatch(const NcclCall& a, int rank_a, const NcclCall& b, int rank_b) {
  Die(absl::StrFormat("NCCL: rank %d calls %s where rank %d calls %s", rank_a, ToString(a), rank_b,
                      ToString(b)));
}

}  // namespace

const char* NameOf(NcclCall::Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return "ncclAllReduce";
    case Kind::kAllGather:
      return "ncclAllGather";
    case Kind::kReduceScatter:
      return "ncclReduceScatter";
    case Kind::kReduce:
      return "ncclReduce";
    case Kind::kBroadcast:
      return "ncclBroadcast";
    case Kind::kSend:
      return "ncclSend";
    case Kind::kReceive:
      return "ncclRecv";
  }
  Die("unknown call of NCCL's");
}

std::string ToString(const NcclCall& call) {
  std::string text =
      absl::StrFormat("%s of %d %s", NameOf(call.kind), call.count, NameOf(call.type));
  if (Reduces(call.kind)) absl::StrAppend(&text, call.reduction == ncclMax ? ", max" : ", sum");
  if (HasPeer(call.kind)) absl::StrAppend(&text, ", with rank ", call.peer);
  return text;
}

void CheckCall(const NcclCall& call, int rank, int size) {
  Check(call.peer >= 0 && call.peer < size, "%s with rank %d of %d", NameOf(call.kind), call.peer,
        size);
  if (Reduces(call.kind)) {
    Check(call.reduction == ncclSum || call.reduction == ncclMax,
          "NCCL's reduction %d is not emulated", static_cast<int>(call.reduction));
    Check(call.type != ncclInt8, "%s of int8 is not emulated", NameOf(call.kind));
  }
  const Range read = ReadBy(call, rank, size), written = WrittenBy(call, rank, size);
  CheckBuffer(read, call, rank);
  CheckBuffer(written, call, rank);
  if (Overlap(read, written) && !IsInPlace(call, rank)) {
    Die(absl::StrFormat("%s on rank %d: its buffers overlap, and not as NCCL's in place",
                        ToString(call), rank));
  }
}

void CheckGroup(absl::Span<const NcclCall> calls, int rank, int size) {
  int64_t sends = 0, receives = 0;  // to and from itself
  for (size_t i = 0; i < calls.size(); ++i) {
    const bool is_own = calls[i].peer == rank;
    if (is_own && calls[i].kind == Kind::kSend) ++sends;
    if (is_own && calls[i].kind == Kind::kReceive) ++receives;
    const Range read = ReadBy(calls[i], rank, size), written = WrittenBy(calls[i], rank, size);
    for (size_t j = 0; j < i; ++j) {
      const Range other_written = WrittenBy(calls[j], rank, size);
      if (Overlap(written, other_written) || Overlap(read, other_written) ||
          Overlap(written, ReadBy(calls[j], rank, size))) {
        Die(absl::StrFormat("%s and %s of one group on rank %d: one writes memory of the other",
                            ToString(calls[j]), ToString(calls[i]), rank));
      }
    }
  }
  Check(sends == receives,
        "rank %d sends itself %d messages and receives %d in one group: it would wait for ever",
        rank, sends, receives);
}

void MeetAll(absl::Span<const NcclCall> calls) {
  const int size = static_cast<int>(calls.size());
  for (int r = 1; r < size; ++r) {
    const NcclCall& call = calls[static_cast<size_t>(r)];
    if (!IsSameCollective(calls[0], call)) DieOfMismatch(calls[0], 0, call, r);
  }
  // Before any is written: what is received may lie where it was sent from.
  const std::vector<std::byte> result = ResultOf(calls);
  for (int r = 0; r < size; ++r) {
    const NcclCall& call = calls[static_cast<size_t>(r)];
    const size_t bytes = WrittenBy(call, r, size).bytes;
    const bool scatters = call.kind == Kind::kReduceScatter;
    const size_t offset = scatters ? static_cast<size_t>(r) * bytes : 0;
    if (bytes > 0) std::memcpy(call.received, result.data() + offset, bytes);
  }
}

void MeetPair(const NcclCall& send, const NcclCall& receive, int from, int to) {
  if (send.count != receive.count || send.type != receive.type) {
    DieOfMismatch(send, from, receive, to);
  }
  const size_t bytes = send.count * SizeOf(send.type);
  if (bytes > 0) std::memcpy(receive.received, send.sent, bytes);
}

}  // namespace twinstream::gpu
