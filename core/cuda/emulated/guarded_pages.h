// Memory of the emulation: of its cards, and of blocks their shared memory and the threads' stacks.
#pragma once

#include <sys/mman.h>

#include <cstddef>

#include "core/check.h"

// Of the address sanitizer, where the program has one; else null.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming)
extern "C" [[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* begin,
                                                            size_t bytes);
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

namespace twinstream::gpu {

// Whole pages between two pages that nobody may touch.
class GuardedPages {
 public:
  explicit GuardedPages(size_t bytes)
      : bytes_((bytes + kPageBytes - 1) / kPageBytes * kPageBytes),
        data_(static_cast<std::byte*>(mmap(nullptr, bytes_ + 2 * kPageBytes, PROT_NONE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (exists()) Check(mprotect(begin(), bytes_, PROT_READ | PROT_WRITE) == 0, "mprotect failed");
  }
  // Functions of a fiber never return, so what the sanitizer has marked of their frames would stay
  // marked for whoever gets these addresses next.
  ~GuardedPages() {
    if (!exists()) return;
    if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(begin(), bytes_);
    munmap(data_, bytes_ + 2 * kPageBytes);
  }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  // Not where the process has no room for them.
  bool exists() const { return data_ != MAP_FAILED; }
  std::byte* begin() const { return data_ + kPageBytes; }
  std::byte* end() const { return begin() + bytes_; }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kPageBytes = 4096;

  size_t bytes_;
  std::byte* data_;
};

}  // namespace twinstream::gpu
