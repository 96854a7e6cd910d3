// The streams of the emulated cards, for what puts work on them: launches, copies, products, NCCL.
//
// Work on a stream is done as late as a card may do it: when a thread of the host waits for it,
// which then does it. While a thread waits it goes on with any stream of any card that can, chosen
// anew for each piece of work (or as EmulatedHost::one_stream_at_a_time says) and alike in every
// run of a program with one thread: whatever lacks an event between two streams, or changes memory
// that the host was promised, gives wrong results.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>

namespace twinstream::gpu {

// Work that is done in one go, once everything before it on the stream is.
void Issue(cudaStream_t stream, std::function<void()> work);
// Work that others' work completes. In its turn `advance` is called again and again, by one thread
// at a time, until it returns true; between the calls other streams go on, without which it may not
// be able to. It must not block.
void IssueAwaiting(cudaStream_t stream, std::function<bool()> advance);

// Dies unless the stream is on the calling thread's current card, as CUDA demands of `what`.
void CheckOnCurrentCard(cudaStream_t stream, const char* what);
// Dies unless all of it is memory of the calling thread's current card. what: of a message.
void CheckOfCurrentCard(const void* data, size_t bytes, const char* what);
// Dies where that is memory of another card than the calling thread's current one.
void CheckOfNoOtherCard(const void* data);
// Of the calling thread; 0 until it calls cudaSetDevice. It is in use from then on.
int CurrentCard();

// Goes on with streams until done() is true, which is called under the lock that guards them all:
// for calls that make the host wait. done() becomes true by work of some stream, or by another
// thread, which calls WakeWaiting afterwards.
void WorkUntil(const std::function<bool()>& done);
void WakeWaiting();

}  // namespace twinstream::gpu
