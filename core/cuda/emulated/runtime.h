// The emulated host, its cards and its NCCL: what a test sets and sees, and what the parts of the
// emulation share.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/cuda/workspace.h"

namespace twinstream::gpu {

// A host with its cards, all alike. Before it is set: one card.
struct EmulatedHost {
  int cards = 1;  // up to 64
  int capability_major = 9, capability_minor = 0;
  int multiprocessors = 2;
  int64_t shared_bytes = kSharedBytesOfABlock;  // that a block may ask for
  int64_t memory_bytes = int64_t{64} << 30;     // of each card
  int driver_version = 13000;                   // as CUDA writes it; 0: there is no driver
  cudaError_t count_error = cudaSuccess;        // of cudaGetDeviceCount, with a new enough driver
  // Of all cards one stream goes on, as far as it can, before another does: that one is as late as
  // may be. Not with AllowWork, which then may return early.
  bool one_stream_at_a_time = false;
  // The first product of a kind waits for all that its card has been given, as the loading of a
  // kernel may.
  bool loading_waits = false;
};
// While no stream is there.
void SetEmulatedHost(const EmulatedHost& host);
const EmulatedHost& TheHost();

// From now on the stream does its work only up to piece number `pieces`, counted from 1 over its
// life. Does at once what it, and all others, then can.
constexpr int64_t kAllWork = std::numeric_limits<int64_t>::max();
void AllowWork(cudaStream_t stream, int64_t pieces);
int64_t PiecesIssued(cudaStream_t stream);  // over its life
// From now on the card is broken, as after a kernel's failure: who asks how its work goes, or waits
// for it, gets the error.
void BreakCard(int card, cudaError_t error);
// Whether any thread has used the card, which on a real one takes memory.
bool IsInUse(int card);

// What ncclCommGetAsyncError finds from now on, and what calls for data return, of every
// communicator; ncclSuccess: no failure.
void FailNccl(ncclResult_t result);
// How many communicators there are, of all ranks.
size_t NcclCommunicators();

// ---- Of the runtime's own.

constexpr int kMostUrgent = -5;  // priority of a stream

// The error, which, unless it is cudaSuccess, cudaGetLastError will return too.
cudaError_t Failed(cudaError_t error);
// Whether the calling thread captures.
bool IsCapturing();
// The error of a call that CUDA forbids the thread while it captures; the capture is lost.
cudaError_t CaptureForbidsIt();
bool AnyStreams();
cudaError_t StateOf(int card);    // what BreakCard has set
int CardOf(cudaStream_t stream);  // null: the current one
// Waits for all that the streams of the card have been given so far, or until it breaks.
cudaError_t AwaitCard(int card);

}  // namespace twinstream::gpu
