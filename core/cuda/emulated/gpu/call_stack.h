// Stacks of calls for the threads of emulated blocks, which one thread of the host runs in turn.
#pragma once

#include <cstddef>

#include "core/cuda/emulated/guarded_pages.h"

// Saves the callee-saved registers and the stack pointer of the running stack in *from, goes on
// where `to` was left.
extern "C" void TwinstreamSwitchStack(void** from, void* to);

// Of the thread sanitizer, where the program has it; else null.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming)
extern "C" [[gnu::weak]] void* __tsan_get_current_fiber();
extern "C" [[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
extern "C" [[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
extern "C" [[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

namespace twinstream::gpu {

// A stack of calls as the thread sanitizer knows it. What one does comes before what the next does
// that the thread goes on with.
class TsanFiber {
 public:
  explicit TsanFiber(void* fiber) : fiber_(fiber) {}
  static TsanFiber New() {
    return TsanFiber(__tsan_create_fiber == nullptr ? nullptr : __tsan_create_fiber(0));
  }
  static TsanFiber Current() {
    return TsanFiber(__tsan_get_current_fiber == nullptr ? nullptr : __tsan_get_current_fiber());
  }
  // Just before the stack is switched to its own.
  void Enter() const {
    if (__tsan_switch_to_fiber != nullptr) __tsan_switch_to_fiber(fiber_, 0);
  }
  void Destroy() const {
    if (__tsan_destroy_fiber != nullptr) __tsan_destroy_fiber(fiber_);
  }

 private:
  void* fiber_;
};

// For the thread of the host that makes it.
class CallStack {
 public:
  // Begins in `enter`, which never returns.
  explicit CallStack(void (*enter)());
  ~CallStack() { tsan_.Destroy(); }
  CallStack(const CallStack&) = delete;
  CallStack& operator=(const CallStack&) = delete;

  // From the thread's own stack: goes on with this one until it is left.
  void Enter() {
    tsan_.Enter();
    TwinstreamSwitchStack(&own_pointer_, pointer_);
  }
  // From this one.
  void Leave() {
    own_tsan_.Enter();
    TwinstreamSwitchStack(&pointer_, own_pointer_);
  }

 private:
  static constexpr size_t kBytes = 256 << 10;  // of address space; memory is what a kernel touches

  GuardedPages pages_{kBytes};
  void* pointer_;
  void* own_pointer_ = nullptr;  // of the thread's own stack
  const TsanFiber tsan_ = TsanFiber::New(), own_tsan_ = TsanFiber::Current();
};

}  // namespace twinstream::gpu
