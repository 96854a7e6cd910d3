#include "gpu/emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "core/check.h"

// Saves the callee-saved registers and the stack pointer of the running fiber in *from, goes on
// where `to` was left.
extern "C" void TwinstreamSwitchFiber(void** from, void* to);
__asm__(R"(
.text
.type TwinstreamSwitchFiber,@function
TwinstreamSwitchFiber:
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
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr size_t kPageBytes = 4096;

// Whole pages with a page behind them that nobody may touch; a fiber's stack has one before it.
class GuardedPages {
 public:
  explicit GuardedPages(size_t bytes)
      : bytes_((bytes + kPageBytes - 1) / kPageBytes * kPageBytes),
        data_(static_cast<std::byte*>(mmap(nullptr, bytes_ + 2 * kPageBytes, PROT_NONE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    Check(data_ != MAP_FAILED, "no memory for an emulated block");
    Check(mprotect(begin(), bytes_, PROT_READ | PROT_WRITE) == 0, "mprotect failed");
  }
  ~GuardedPages() { munmap(data_, bytes_ + 2 * kPageBytes); }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  std::byte* begin() const { return data_ + kPageBytes; }
  std::byte* end() const { return begin() + bytes_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

struct DeferredCopy {
  void* to;
  const void* from;
  bool zero;
};

enum class State { kRunning, kAtBlock, kAtWarp, kReturned };

struct Fiber {
  void* stack_pointer = nullptr;
  State state = State::kRunning;
  Meeting meeting = Meeting::kBlockBarrier;
  dim3 index;
  int id = 0;
  std::array<std::byte, kExchangeBytes> given = {};
  int64_t exchanges = 0;                                // taken part in so far
  std::deque<std::vector<DeferredCopy>> copies = {{}};  // the last group is not committed yet

  int lane() const { return id % kWarpLanes; }
  int warp() const { return id / kWarpLanes; }
};

const char* NameOf(Meeting meeting) {
  switch (meeting) {
    case Meeting::kBlockBarrier:
      return "a block's barrier";
    case Meeting::kWarpBarrier:
      return "a warp's barrier";
    case Meeting::kShuffle:
      return "a shuffle";
    case Meeting::kMatrixLoad:
      return "a matrix load";
    case Meeting::kProduct:
      return "a matrix product";
  }
  return "";
}

class Block {
 public:
  // Fibers, stacks and shared memory stay for the next grid of this host thread.
  void Run(const EmulatedGrid& grid, dim3 index, absl::FunctionRef<void()> body);

  Fiber& running() { return fibers_[running_]; }
  void Yield(State state, Meeting meeting) {
    running().state = state;
    running().meeting = meeting;
    TwinstreamSwitchFiber(&running().stack_pointer, scheduler_);
  }
  const Fiber& LaneOfWarp(int lane) {
    const size_t id = static_cast<size_t>(running().warp() * kWarpLanes + lane);
    Check(id < count_ && fibers_[id].exchanges == running().exchanges,
          "kernel %s: lane %d reads lane %d, which takes no part in the exchange", kernel_,
          running().lane(), lane);
    return fibers_[id];
  }
  std::byte* shared() const { return shared_begin_; }
  int64_t shared_bytes() const { return shared_bytes_; }

 private:
  static void Enter();  // a fiber's first and only function

  void Prepare(const EmulatedGrid& grid, dim3 index);
  // Runs every fiber that can run up to its next meeting; false when there was none.
  bool Advance();
  bool ReleaseWarps();
  bool ReleaseBlock();
  void CheckAgreement(const Fiber& a, const Fiber& b) const;
  bool Done() const;

  const char* kernel_ = "";
  size_t count_ = 0;  // threads of the block
  std::deque<Fiber> fibers_;
  std::vector<std::unique_ptr<GuardedPages>> stacks_;
  std::unique_ptr<GuardedPages> shared_memory_;
  std::byte* shared_begin_ = nullptr;
  int64_t shared_bytes_ = 0;
  size_t running_ = 0;
  void* scheduler_ = nullptr;
  absl::FunctionRef<void()>* body_ = nullptr;
  uint32_t random_ = 1;
};

Block& ThisBlock() {
  thread_local Block block;
  return block;
}

void Block::Enter() {
  (*ThisBlock().body_)();
  ThisBlock().Yield(State::kReturned, Meeting::kBlockBarrier);
}

void Block::Prepare(const EmulatedGrid& grid, dim3 index) {
  kernel_ = grid.kernel;
  count_ = size_t{grid.threads.x} * grid.threads.y * grid.threads.z;
  Check(count_ <= 1024, "kernel %s: %d threads in a block, at most 1024", kernel_, count_);
  while (stacks_.size() < count_) stacks_.push_back(std::make_unique<GuardedPages>(kStackBytes));
  if (fibers_.size() < count_) fibers_.resize(count_);
  shared_bytes_ = grid.shared_bytes;
  const size_t shared = static_cast<size_t>(shared_bytes_ + 127) / 128 * 128;
  if (shared_memory_ == nullptr || shared_memory_->bytes() < shared) {
    shared_memory_ = std::make_unique<GuardedPages>(shared);
  }
  shared_begin_ = shared_memory_->end() - shared;  // flush with the guard page
  std::memset(shared_begin_, 0xFF, shared);        // NaN, as good as uninitialised
  blockIdx = index;
  blockDim = grid.threads;
  gridDim = grid.blocks;
  for (size_t i = 0; i < count_; ++i) {
    Fiber& fiber = fibers_[i];
    fiber.state = State::kRunning;
    fiber.id = static_cast<int>(i);
    fiber.exchanges = 0;
    fiber.copies.assign(1, {});
    const auto x = static_cast<unsigned>(i);
    fiber.index = {x % grid.threads.x, x / grid.threads.x % grid.threads.y,
                   x / (grid.threads.x * grid.threads.y)};
    void** top = reinterpret_cast<void**>(stacks_[i]->end());
    *--top = nullptr;  // Enter's return address: it never returns
    *--top = reinterpret_cast<void*>(&Block::Enter);
    fiber.stack_pointer = top - 6;  // registers
  }
}

bool Block::Advance() {
  random_ = random_ * 1664525U + 1013904223U;
  const size_t offset = (random_ >> 8) % count_;
  const bool backwards = (random_ >> 31) != 0;
  bool any = false;
  for (size_t k = 0; k < count_; ++k) {
    const size_t i = ((backwards ? count_ - 1 - k : k) + offset) % count_;
    if (fibers_[i].state != State::kRunning) continue;
    any = true;
    running_ = i;
    threadIdx = fibers_[i].index;
    TwinstreamSwitchFiber(&scheduler_, fibers_[i].stack_pointer);
  }
  return any;
}

void Block::CheckAgreement(const Fiber& a, const Fiber& b) const {
  Check(a.meeting == b.meeting,
        "kernel %s, block (%d, %d, %d): thread %d waits in %s, thread %d in %s", kernel_,
        blockIdx.x, blockIdx.y, blockIdx.z, a.id, NameOf(a.meeting), b.id, NameOf(b.meeting));
}

bool Block::ReleaseWarps() {
  bool released = false;
  for (size_t begin = 0; begin < count_; begin += kWarpLanes) {
    const size_t end = std::min(count_, begin + kWarpLanes);
    Fiber* first = nullptr;
    size_t waiting = 0, alive = 0;
    for (size_t i = begin; i < end; ++i) {
      alive += fibers_[i].state != State::kReturned ? 1 : 0;
      if (fibers_[i].state != State::kAtWarp) continue;
      ++waiting;
      if (first == nullptr) first = &fibers_[i];
      CheckAgreement(*first, fibers_[i]);
    }
    if (waiting == 0 || waiting < alive) continue;
    for (size_t i = begin; i < end; ++i) {
      if (fibers_[i].state == State::kAtWarp) fibers_[i].state = State::kRunning;
    }
    released = true;
  }
  return released;
}

bool Block::ReleaseBlock() {
  size_t waiting = 0, returned = 0;
  for (size_t i = 0; i < count_; ++i) {
    waiting += fibers_[i].state == State::kAtBlock ? 1 : 0;
    returned += fibers_[i].state == State::kReturned ? 1 : 0;
  }
  if (waiting == 0 || waiting + returned < count_) return false;
  Check(returned == 0, "kernel %s: %d threads of a block wait in its barrier, %d have returned",
        kernel_, waiting, returned);
  for (size_t i = 0; i < count_; ++i) fibers_[i].state = State::kRunning;
  return true;
}

bool Block::Done() const {
  return std::all_of(fibers_.begin(), fibers_.begin() + static_cast<std::ptrdiff_t>(count_),
                     [](const Fiber& fiber) { return fiber.state == State::kReturned; });
}

void Block::Run(const EmulatedGrid& grid, dim3 index, absl::FunctionRef<void()> body) {
  Prepare(grid, index);
  body_ = &body;
  while (!Done()) {
    const bool advanced = Advance();
    const bool warps = ReleaseWarps(), block = ReleaseBlock();
    Check(advanced || warps || block,
          "kernel %s, block (%d, %d, %d): some threads wait in a warp's exchange for others that "
          "wait in the block's barrier",
          kernel_, index.x, index.y, index.z);
  }
  for (size_t i = 0; i < count_; ++i) {
    Check(fibers_[i].copies.size() == 1 && fibers_[i].copies.back().empty(),
          "kernel %s: thread %d returned without waiting for its asynchronous copies", kernel_, i);
  }
}

}  // namespace

void Emulate(const EmulatedGrid& grid, absl::FunctionRef<void()> body) {
  Check(grid.blocks.x > 0 && grid.blocks.y > 0 && grid.blocks.z > 0, "kernel %s: an empty grid",
        grid.kernel);
  Check(grid.blocks.y < 65536 && grid.blocks.z < 65536, "kernel %s: a grid of %d x %d x %d",
        grid.kernel, grid.blocks.x, grid.blocks.y, grid.blocks.z);
  Check(grid.shared_bytes <= 227 * 1024, "kernel %s: %d bytes of shared memory, a card has 227 KiB",
        grid.kernel, grid.shared_bytes);
  for (unsigned z = 0; z < grid.blocks.z; ++z) {
    for (unsigned y = 0; y < grid.blocks.y; ++y) {
      for (unsigned x = 0; x < grid.blocks.x; ++x) ThisBlock().Run(grid, {x, y, z}, body);
    }
  }
}

void MeetBlock() { ThisBlock().Yield(State::kAtBlock, Meeting::kBlockBarrier); }
void MeetWarp(Meeting meeting) { ThisBlock().Yield(State::kAtWarp, meeting); }

// The second meeting keeps a fast lane from giving anew before all have read: a lane reads between
// this exchange and its next.
void Exchange(Meeting meeting, const void* given, int bytes) {
  MeetWarp(meeting);
  Fiber& fiber = ThisBlock().running();
  std::memcpy(fiber.given.data(), given, static_cast<size_t>(bytes));
  ++fiber.exchanges;
  MeetWarp(meeting);
}

const std::byte* GivenBy(int lane) { return ThisBlock().LaneOfWarp(lane).given.data(); }
int Lane() { return ThisBlock().running().lane(); }
std::byte* BlockSharedMemory() { return ThisBlock().shared(); }
int64_t BlockSharedBytes() { return ThisBlock().shared_bytes(); }

void DeferCopy(void* to, const void* from, bool zero) {
  ThisBlock().running().copies.back().push_back({to, from, zero});
}
void CommitDeferredCopies() { ThisBlock().running().copies.emplace_back(); }
void WaitForDeferredCopies(int groups_left) {
  auto& groups = ThisBlock().running().copies;
  while (static_cast<int>(groups.size()) - 1 > groups_left) {
    for (const DeferredCopy& copy : groups.front()) {
      if (copy.zero) {
        std::memset(copy.to, 0, 16);
      } else {
        std::memcpy(copy.to, copy.from, 16);
      }
    }
    groups.pop_front();
  }
}

}  // namespace twinstream::gpu
