// Memory of the emulated cards, and page-locked memory of the host: the host's, each allocation
// between pages that nobody may touch.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/cuda/emulated/guarded_pages.h"
#include "core/cuda/emulated/runtime.h"
#include "core/cuda/emulated/streams.h"

namespace twinstream::gpu {
namespace {

constexpr std::byte kCanary{0xA5};
constexpr int kOfHost = -1;

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

bool IsCanary(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte b) { return b == kCanary; });
}

// Ends, but for the rounding to its alignment, where its pages do.
struct Allocation {
  std::unique_ptr<GuardedPages> pages;
  size_t bytes = 0;
  int card = kOfHost;

  // As CUDA promises where that leaves no gap, else less: the guard page is nearer.
  size_t alignment() const { return bytes % 256 == 0 ? 256 : 16; }
  std::byte* begin() const { return pages->end() - RoundUp(bytes, alignment()); }
};

struct Memory {
  std::mutex mutex;  // guards what follows
  std::map<const std::byte*, Allocation> allocations;

  // What has the byte at `data`; end() if nothing does.
  auto Find(const void* data) {
    const auto* const byte = static_cast<const std::byte*>(data);
    auto after = allocations.upper_bound(byte);
    if (after == allocations.begin()) return allocations.end();
    --after;
    return byte < after->first + after->second.bytes ? after : allocations.end();
  }
  size_t BytesOf(int card) const {
    size_t bytes = 0;
    for (const auto& [data, allocation] : allocations) {
      if (allocation.card == card) bytes += allocation.bytes;
    }
    return bytes;
  }
};

Memory& TheMemory() {
  static Memory& memory = *new Memory;  // never destroyed: devices may be later
  return memory;
}

// Like Free, uses the thread's current card, whatever the memory is.
cudaError_t Allocate(void** data, size_t bytes, int card) {
  *data = nullptr;
  CurrentCard();
  if (IsCapturing()) return CaptureForbidsIt();
  if (bytes == 0) return cudaSuccess;
  Allocation allocation = {std::make_unique<GuardedPages>(bytes), bytes, card};
  if (!allocation.pages->exists()) return Failed(cudaErrorMemoryAllocation);
  std::fill(allocation.pages->begin(), allocation.pages->end(), kCanary);
  std::byte* const begin = allocation.begin();
  const std::lock_guard lock(TheMemory().mutex);
  TheMemory().allocations[begin] = std::move(allocation);
  *data = begin;
  return cudaSuccess;
}

void CheckCanaries(const Allocation& allocation) {
  const std::byte* const begin = allocation.begin();
  Check(IsCanary(allocation.pages->begin(), begin), "a kernel wrote in front of %d bytes",
        allocation.bytes);
  Check(IsCanary(begin + allocation.bytes, allocation.pages->end()),
        "a kernel wrote behind the end of %d bytes", allocation.bytes);
}

// As CUDA does, waits for all that the card has been given.
cudaError_t Free(void* data, bool of_host) {
  CurrentCard();
  if (IsCapturing()) return CaptureForbidsIt();
  if (data == nullptr) return cudaSuccess;
  std::unique_lock lock(TheMemory().mutex);
  const auto found = TheMemory().allocations.find(static_cast<std::byte*>(data));
  if (found == TheMemory().allocations.end() || (found->second.card == kOfHost) != of_host) {
    return Failed(cudaErrorInvalidValue);
  }
  const int card = of_host ? CurrentCard() : found->second.card;
  lock.unlock();
  if (const cudaError_t error = AwaitCard(card); error != cudaSuccess) return error;
  lock.lock();
  CheckCanaries(found->second);
  TheMemory().allocations.erase(found);
  return cudaSuccess;
}

enum class Place { kCard, kPageLocked, kPageable };

// Of memory that work on the card reads or writes; dies where not all of it is there, or it is
// another card's.
Place PlaceOf(const void* data, size_t bytes, int card) {
  const std::lock_guard lock(TheMemory().mutex);
  const auto found = TheMemory().Find(data);
  if (found == TheMemory().allocations.end()) return Place::kPageable;
  const auto& [begin, allocation] = *found;
  const auto offset = static_cast<size_t>(static_cast<const std::byte*>(data) - begin);
  Check(offset + bytes <= allocation.bytes, "%d bytes from byte %d on, of %d in an allocation",
        bytes, offset, allocation.bytes);
  if (allocation.card == kOfHost) return Place::kPageLocked;
  Check(allocation.card == card, "work on card %d with memory of card %d", card, allocation.card);
  return Place::kCard;
}

}  // namespace

void CheckOfCurrentCard(const void* data, size_t bytes, const char* what) {
  Check(PlaceOf(data, bytes, CurrentCard()) == Place::kCard, "%s with memory of the host", what);
}

void CheckOfNoOtherCard(const void* data) { PlaceOf(data, /*bytes=*/1, CurrentCard()); }

}  // namespace twinstream::gpu

using namespace twinstream::gpu;  // NOLINT: what follows is CUDA's, in no namespace

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = static_cast<size_t>(TheHost().memory_bytes);
  const std::lock_guard lock(TheMemory().mutex);
  *free = *total - TheMemory().BytesOf(CurrentCard());
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  size_t free = 0, total = 0;
  *data = nullptr;
  if (const cudaError_t error = cudaMemGetInfo(&free, &total); error != cudaSuccess) return error;
  if (bytes > free) return Failed(cudaErrorMemoryAllocation);
  return Allocate(data, bytes, CurrentCard());
}

cudaError_t cudaFree(void* data) { return Free(data, /*of_host=*/false); }

cudaError_t cudaMallocHost(void** data, size_t bytes) { return Allocate(data, bytes, kOfHost); }

cudaError_t cudaFreeHost(void* data) { return Free(data, /*of_host=*/true); }

// What the host may change is read before this returns, or, of page-locked memory, as late as it
// may be. What goes to pageable memory is there when this returns.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  const Place target = PlaceOf(to, bytes, CardOf(stream)),
              source = PlaceOf(from, bytes, CardOf(stream));
  twinstream::Check(target == Place::kCard || source == Place::kCard,
                    "a stream copies from the host to the host");
  const auto* const begin = static_cast<const std::byte*>(from);
  if (source == Place::kPageable) {
    twinstream::Check(!IsCapturing(), "a capture of a copy from pageable memory");
    Issue(stream, [to, bytes, held = std::vector<std::byte>(begin, begin + bytes)] {
      std::memcpy(to, held.data(), bytes);
    });
    return cudaSuccess;
  }
  auto* const end = static_cast<std::byte*>(to) + bytes;
  twinstream::Check(end <= begin || begin + bytes <= to, "a copy of %d bytes onto themselves",
                    bytes);
  Issue(stream, [=] { std::memcpy(to, from, bytes); });
  return target == Place::kPageable ? cudaStreamSynchronize(stream) : cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  twinstream::Check(PlaceOf(data, bytes, CardOf(stream)) == Place::kCard,
                    "a stream clears memory of the host");
  Issue(stream, [=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}
