// Events of the emulated cards.
#include "core/check.h"
#include "core/cuda/emulated/captures.h"
#include "core/cuda/emulated/runtime.h"
#include "core/cuda/emulated/stream_state.h"
#include "core/cuda/emulated/streams.h"

using namespace twinstream::gpu;  // NOLINT: what follows is CUDA's, in no namespace

namespace {

// Of a call that is not for events of a capture, which it destroys where it is still open.
bool IsCaptured(const CUevent_st& event) {
  const std::lock_guard lock(TheRuntime().mutex);
  if (event.capture != nullptr) event.capture->Break(cudaErrorCapturedEvent);
  return event.capture != nullptr;
}

}  // namespace

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  twinstream::Check(flags == cudaEventDisableTiming, "an event with the flags %d", flags);
  *event = new CUevent_st{.card = CurrentCard()};
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->card != stream->card) return Failed(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(TheRuntime().mutex);
  event->mark = 0;
  event->capture = stream->capture;
  if (event->capture != nullptr) return Failed(event->capture->Record(*stream, &event->point));
  event->mark = TheRuntime().NewMark();
  Append(*stream, [mark = event->mark] {
    const std::lock_guard happening(TheRuntime().mutex);
    TheRuntime().awaited_marks.erase(mark);
    return true;
  });
  return cudaSuccess;
}

// Only the order within a stream may lead into a capture or out of it.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  twinstream::Check(flags == 0, "cudaStreamWaitEvent with the flags %d", flags);
  const std::lock_guard lock(TheRuntime().mutex);
  if (event->capture != nullptr) return Failed(event->capture->Wait(*stream, event->point));
  if (event->mark == 0) return cudaSuccess;
  if (stream->capture != nullptr) {
    return Failed(stream->capture->Break(cudaErrorStreamCaptureIsolation));
  }
  Append(*stream, [mark = event->mark] {
    const std::lock_guard asking(TheRuntime().mutex);
    return TheRuntime().HasHappened(mark);
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (IsCapturing()) return CaptureForbidsIt();
  if (IsCaptured(*event)) return Failed(cudaErrorCapturedEvent);
  if (const cudaError_t error = StateOf(CurrentCard()); error != cudaSuccess) return Failed(error);
  const std::lock_guard lock(TheRuntime().mutex);
  return TheRuntime().HasHappened(event->mark) ? cudaSuccess : Failed(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (IsCapturing()) return CaptureForbidsIt();
  if (IsCaptured(*event)) return Failed(cudaErrorCapturedEvent);
  WorkUntil([event, mark = event->mark] {
    return TheRuntime().HasHappened(mark) || StateOf(event->card) != cudaSuccess;
  });
  return Failed(StateOf(event->card));
}
