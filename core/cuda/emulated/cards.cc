// The emulated host: its cards, and what the runtime says of them.
#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>

#include "core/check.h"
#include "core/cuda/emulated/runtime.h"
#include "core/cuda/emulated/streams.h"

namespace twinstream::gpu {
namespace {

constexpr int kRuntimeVersion = 13000;
constexpr size_t kMostCards = 64;

EmulatedHost host;
struct Card {
  std::atomic<bool> in_use = false;
  std::atomic<cudaError_t> state = cudaSuccess;
};
std::array<Card, kMostCards> cards;
Card& At(int card) { return cards.at(static_cast<size_t>(card)); }

thread_local int current_card = 0;
thread_local cudaError_t last_error = cudaSuccess;

// As CUDA names and explains them.
struct Error {
  cudaError_t error;
  const char *name, *text;
};
constexpr Error kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady", "system not yet initialized"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
};

const Error& ErrorFor(cudaError_t error) {
  const auto* const found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                         [=](const Error& e) { return e.error == error; });
  Check(found != std::end(kErrors), "error %d is none of CUDA's that are emulated", error);
  return *found;
}

}  // namespace

void SetEmulatedHost(const EmulatedHost& to) {
  Check(!AnyStreams(), "the emulated host changes while a stream is there");
  Check(to.cards <= static_cast<int>(kMostCards), "%d emulated cards", to.cards);
  host = to;
}
const EmulatedHost& TheHost() { return host; }

int CurrentCard() {
  At(current_card).in_use = true;
  return current_card;
}
bool IsInUse(int card) { return At(card).in_use; }

void BreakCard(int card, cudaError_t error) {
  At(card).state = error;
  WakeWaiting();
}
cudaError_t StateOf(int card) { return At(card).state; }

cudaError_t Failed(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace twinstream::gpu

using namespace twinstream::gpu;  // NOLINT: what follows is CUDA's, in no namespace

const char* cudaGetErrorName(cudaError_t error) { return ErrorFor(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return ErrorFor(error).text; }

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = host.driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kRuntimeVersion;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (host.driver_version < kRuntimeVersion) return Failed(cudaErrorInsufficientDriver);
  if (host.count_error != cudaSuccess) return Failed(host.count_error);
  *count = host.cards;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int card) {
  if (card < 0 || card >= host.cards) return Failed(cudaErrorInvalidDevice);
  current_card = card;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* card) {
  *card = current_card;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int card) {
  if (card < 0 || card >= host.cards) return Failed(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = host.multiprocessors;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = host.capability_major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = host.capability_minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(host.shared_bytes);
      return cudaSuccess;
  }
  return Failed(cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int card) {
  if (card < 0 || card >= host.cards) return Failed(cudaErrorInvalidDevice);
  *properties = {};
  properties->uuid.bytes[0] = static_cast<char>(card + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = kMostUrgent;
  return cudaSuccess;
}
