#include "core/cuda/emulated/gpu/call_stack.h"

#include "core/check.h"

__asm__(R"(
.text
.globl TwinstreamSwitchStack
.type TwinstreamSwitchStack,@function
TwinstreamSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace twinstream::gpu {

CallStack::CallStack(void (*enter)()) {
  Check(pages_.exists(), "no memory for the stack of an emulated thread");
  void** top = reinterpret_cast<void**>(pages_.end());
  *--top = nullptr;  // enter's return address
  *--top = reinterpret_cast<void*>(enter);
  pointer_ = top - 6;  // registers
}

}  // namespace twinstream::gpu
