// Communicator: collectives and point-to-point messages among the ranks of one grid axis (or of the
// world). Every operation is ordered after the device work issued before it, and later device work
// after it. All members call the same collectives in the same order; a failure or a timeout ends
// the job with the names of who waits for whom.
//
// Three implementations: HostCommunicator for memory of the host, StagedCommunicator for memory of
// devices by way of the host, and DeviceCommunicator from device to device. What they promise of
// bits:
//                                   host, staged              device
//   every rank gets the same bits   yes                       yes
//   the same bits every time        yes, on any transport     yes, on the same machines
//   order of AllReduce's and        the ranks'                the network's
//     ReduceScatter's sums
//   their sums of bf16              in float32, rounded once  rounded at every addition
//   order of ReduceScatterAsBFloat16's sums: the ranks', in float32, everywhere
// So on the device AllReduce may differ by rounding from ReduceScatter and AllGather.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/device_collectives.h"
#include "core/tensor.h"

namespace twinstream {

// Elements of each rank's piece. On the stack up to 64 ranks, more than tensor parallelism spans.
using PieceCounts = absl::InlinedVector<int64_t, 64>;

// Parts of a tensor that go to or come from the ranks: runs of rows along dimension 0, the same
// number of parts for every rank: those of rank 0, then those of rank 1, ...
struct RowParts {
  absl::Span<const int64_t> begins, counts;  // rows
};

// Messages of one channel between two ranks arrive in order; channels are independent of each
// other.
enum class Channel {
  kActivation = 0,
  kGradient = 1,
  kTied = 2,
  kData = 3,
  kKeyValue = 4,
  kKeyValueGradient = 5
};
constexpr int kChannels = 6;

// A message on its way, sent or to be received. After Wait its memory may be reused, or read.
struct Ticket {
  int64_t request = 0;
  const char* what = "";  // "send over pipeline"
};

// What implementations demand of their arguments: die, with `what`, unless the counts are of so
// many ranks and add up to the tensor; or unless the parts are, and lie within it.
void CheckCounts(Tensor inout, absl::Span<const int64_t> counts, int ranks, const char* what);
void CheckParts(Tensor tensor, RowParts parts, int ranks, const char* what);

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual absl::string_view name() const = 0;  // "tensor", "data", "pipeline", "world"
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place.
  virtual void AllReduce(Tensor inout, Reduction reduction) = 0;
  // inout is the concatenation of every rank's piece, in rank order; counts[r] elements each (sum:
  // all of inout). In: this rank's piece in its place. Out: all pieces.
  virtual void AllGather(Tensor inout, absl::Span<const int64_t> counts) = 0;
  // In: this rank's addends for every piece. Out: the sum of this rank's piece, in its place; the
  // rest is unspecified.
  virtual void ReduceScatter(Tensor inout, absl::Span<const int64_t> counts) = 0;
  // The same for float32 addends that travel as bf16, half the bytes: the sum, in float32 and in
  // the ranks' order, of all ranks' addends rounded to bf16, the own ones too. With one rank
  // nothing travels and nothing is rounded.
  virtual void ReduceScatterAsBFloat16(Tensor inout, absl::Span<const int64_t> counts) = 0;
  // Part i of `in` for rank r becomes part i from this rank in rank r's `out`; both ranks know its
  // rows, and rows have the same size. The own parts are copied, unless they are in their place.
  // Parts of `out` overlap neither each other nor parts of `in` that go elsewhere.
  virtual void AllToAll(Tensor out, RowParts out_parts, Tensor in, RowParts in_parts) = 0;
  virtual void Broadcast(Tensor inout, int root) = 0;
  virtual void Barrier() = 0;

  // Never blocks on the receiver. The tensor stays untouched until Wait(ticket).
  virtual Ticket Send(Tensor tensor, int to, Channel channel) = 0;
  virtual void Receive(Tensor tensor, int from, Channel channel) = 0;
  // The same without waiting: the tensor is neither read nor written until Wait(ticket).
  virtual Ticket StartReceive(Tensor tensor, int from, Channel channel) = 0;
  virtual void Wait(Ticket ticket) = 0;
};

}  // namespace twinstream
