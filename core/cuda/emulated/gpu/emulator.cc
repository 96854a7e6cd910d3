#include "core/cuda/emulated/gpu/emulator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "core/check.h"
#include "core/cuda/emulated/guarded_pages.h"
#include "core/cuda/workspace.h"
#include "gpu/call_stack.h"
#include "gpu/pending_products.h"

namespace twinstream::gpu {
namespace {

// Index i of a grid or block of `extents`, x fastest.
dim3 IndexOf(int64_t i, dim3 extents) {
  const int64_t x = extents.x, y = extents.y;
  return {static_cast<unsigned>(i % x), static_cast<unsigned>(i / x % y),
          static_cast<unsigned>(i / (x * y))};
}

constexpr size_t kCopyBytes = 16;

struct DeferredCopy {
  void* to;
  const void* from;
  bool zero;
};

void Perform(const DeferredCopy& copy) {
  if (copy.zero) {
    std::memset(copy.to, 0, kCopyBytes);
  } else {
    std::memcpy(copy.to, copy.from, kCopyBytes);
  }
}

std::atomic<int64_t> most_shared_bytes = 0;

enum class State { kRunning, kAtBlock, kAtWarp, kReturned };

// A thread of a block, then the same thread of the next block: no frame is left for ever.
struct Fiber {
  Fiber(int id_in, void (*enter)()) : stack(enter), id(id_in) {}

  CallStack stack;
  State state = State::kReturned;
  Meeting meeting = Meeting::kBlockBarrier;
  dim3 index;
  int id;
  int64_t exchanges = 0;  // taken part in so far
  // In the last exchange and the one before, from which slower lanes may still read.
  std::array<std::array<std::byte, kExchangeBytes>, 2> given = {};
  std::deque<std::vector<DeferredCopy>> copies = {{}};  // the last group is not committed yet
  bool unfenced_copies = false;  // some are there that no FenceCopies has followed

  int lane() const { return id % kWarpLanes; }
  int warp() const { return id / kWarpLanes; }
  std::byte* GivenIn(int64_t exchange) { return given[static_cast<size_t>(exchange % 2)].data(); }
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
    case Meeting::kProductFence:
      return "the fence before a warpgroup's products";
    case Meeting::kProductWait:
      return "the wait for a warpgroup's products";
  }
  return "";
}

class Block {
 public:
  // Fibers, stacks and shared memory stay for the next block of this host thread.
  void Run(const EmulatedGrid& grid, dim3 index, absl::FunctionRef<void()> body);

  Fiber& running() { return fibers_[running_]; }
  void Yield(State state, Meeting meeting) {
    running().state = state;
    running().meeting = meeting;
    running().stack.Leave();
  }
  // Of the running fiber's warp; dies unless it took part in the running fiber's last exchange.
  Fiber& LaneOfWarp(int lane);
  std::byte* shared() const { return shared_begin_; }
  int64_t shared_bytes() const { return shared_end_ - shared_begin_; }
  const char* kernel() const { return kernel_; }
  int threads() const { return static_cast<int>(count_); }
  int unfenced_copier() const { return unfenced_copier_; }
  uint32_t NextRandom() {
    random_ = random_ * 1664525U + 1013904223U;
    return random_ >> 16;  // the low bits of such a sequence repeat soon
  }

 private:
  [[noreturn]] static void Enter();  // runs in every fiber

  void Prepare(const EmulatedGrid& grid, dim3 index);
  void PrepareSharedMemory(int64_t bytes);
  // Runs every fiber that can run up to its next meeting; false when there was none.
  bool Advance();
  void ChooseLeader();
  bool ReleaseWarps();
  bool ReleaseBlock();
  bool Done() const;

  [[noreturn]] void DieOfDivergence() const;
  void CheckAgreement(const Fiber& a, const Fiber& b) const;
  void CheckLeftovers() const;

  const char* kernel_ = "";
  size_t count_ = 0;  // threads of the block
  std::deque<Fiber> fibers_;
  std::unique_ptr<GuardedPages> shared_memory_;
  std::byte *shared_begin_ = nullptr, *shared_end_ = nullptr;
  size_t running_ = 0;
  absl::FunctionRef<void()>* body_ = nullptr;
  int unfenced_copier_ = -1;
  int leader_ = -1;  // a warp that runs alone until it waits in a barrier of the block, or none
  uint32_t random_ = 1;
};

Block& ThisBlock() {
  thread_local Block block;
  return block;
}

void Block::Enter() {
  for (;;) {
    (*ThisBlock().body_)();
    ThisBlock().Yield(State::kReturned, Meeting::kBlockBarrier);
  }
}

Fiber& Block::LaneOfWarp(int lane) {
  const size_t id = static_cast<size_t>(running().warp()) * kWarpLanes + static_cast<size_t>(lane);
  Check(
      0 <= lane && lane < kWarpLanes && id < count_ && fibers_[id].exchanges >= running().exchanges,
      "kernel %s: lane %d reads lane %d, which takes no part in the exchange", kernel_,
      running().lane(), lane);
  return fibers_[id];
}

void Block::Prepare(const EmulatedGrid& grid, dim3 index) {
  kernel_ = grid.kernel;
  count_ = size_t{grid.threads.x} * grid.threads.y * grid.threads.z;
  Check(0 < count_ && count_ <= 1024, "kernel %s: %d threads in a block, not 1 to 1024", kernel_,
        count_);
  PrepareSharedMemory(grid.shared_bytes);
  blockIdx = index;
  blockDim = grid.threads;
  gridDim = grid.blocks;
  while (fibers_.size() < count_) fibers_.emplace_back(static_cast<int>(fibers_.size()), &Enter);
  for (size_t i = 0; i < count_; ++i) {
    fibers_[i].state = State::kRunning;
    fibers_[i].index = IndexOf(static_cast<int64_t>(i), blockDim);
    fibers_[i].exchanges = 0;
    fibers_[i].copies.assign(1, {});
    fibers_[i].unfenced_copies = false;
  }
  unfenced_copier_ = -1;
  ChooseLeader();
  BeginPendingProducts();
}

// Aligned to 128 bytes, so that the guard page is near to its end: to 1024, as a card's, only as
// products of warpgroups address it (AddressInShared).
void Block::PrepareSharedMemory(int64_t bytes) {
  const size_t rounded = static_cast<size_t>(bytes + 127) / 128 * 128;
  if (shared_memory_ == nullptr || shared_memory_->bytes() < rounded) {
    shared_memory_ = std::make_unique<GuardedPages>(rounded);
    Check(shared_memory_->exists(), "no memory for the shared memory of an emulated block");
  }
  shared_begin_ = shared_memory_->end() - rounded;
  shared_end_ = shared_begin_ + bytes;
  std::fill(shared_begin_, shared_memory_->end(), kUnwritten);
}

// Every second time there is none.
void Block::ChooseLeader() {
  const int warps = static_cast<int>(count_ + kWarpLanes - 1) / kWarpLanes;
  leader_ = static_cast<int>(NextRandom()) % (2 * warps);
}

bool Block::Advance() {
  const bool leads = std::any_of(
      fibers_.begin(), fibers_.begin() + static_cast<std::ptrdiff_t>(count_),
      [&](const Fiber& f) { return f.warp() == leader_ && f.state == State::kRunning; });
  const size_t offset = NextRandom() % count_;
  const bool backwards = NextRandom() % 2 != 0;
  bool any = false;
  for (size_t k = 0; k < count_; ++k) {
    const size_t i = ((backwards ? count_ - 1 - k : k) + offset) % count_;
    if (fibers_[i].state != State::kRunning) continue;
    if (leads && fibers_[i].warp() != leader_) continue;
    any = true;
    running_ = i;
    threadIdx = fibers_[i].index;
    fibers_[i].stack.Enter();
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
  unfenced_copier_ = -1;
  ChooseLeader();
  for (size_t i = 0; i < count_; ++i) {
    fibers_[i].state = State::kRunning;
    if (fibers_[i].unfenced_copies) unfenced_copier_ = fibers_[i].id;
  }
  return true;
}

bool Block::Done() const {
  return std::all_of(fibers_.begin(), fibers_.begin() + static_cast<std::ptrdiff_t>(count_),
                     [](const Fiber& fiber) { return fiber.state == State::kReturned; });
}

// Every fiber waits or has returned, but no meeting is complete: of some warp some lanes wait for
// the others, which wait for the whole block.
void Block::DieOfDivergence() const {
  for (size_t i = 0; i < count_; ++i) {
    if (fibers_[i].state != State::kAtWarp) continue;
    for (size_t j = 0; j < count_; ++j) {
      if (fibers_[j].state == State::kAtBlock && fibers_[i].warp() == fibers_[j].warp()) {
        CheckAgreement(fibers_[i], fibers_[j]);
      }
    }
  }
  Die("an emulated block is at a standstill");
}

void Block::CheckLeftovers() const {
  CheckNoPendingProducts();
  for (size_t i = 0; i < count_; ++i) {
    for (const std::vector<DeferredCopy>& group : fibers_[i].copies) {
      Check(group.empty(),
            "kernel %s: thread %d returned without waiting for its asynchronous copies", kernel_,
            i);
    }
  }
  Check(
      std::all_of(shared_end_, shared_memory_->end(), [](std::byte b) { return b == kUnwritten; }),
      "kernel %s wrote behind the end of %d bytes of shared memory", kernel_,
      shared_end_ - shared_begin_);
}

void Block::Run(const EmulatedGrid& grid, dim3 index, absl::FunctionRef<void()> body) {
  Prepare(grid, index);
  body_ = &body;
  while (!Done()) {
    const bool advanced = Advance();
    const bool warps = ReleaseWarps(), block = ReleaseBlock();
    if (!advanced && !warps && !block) DieOfDivergence();
  }
  CheckLeftovers();
}

}  // namespace

void Emulate(const EmulatedGrid& grid, absl::FunctionRef<void()> body) {
  const int64_t blocks = int64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
  Check(0 < blocks && grid.blocks.x < 1U << 31 && grid.blocks.y < 65536 && grid.blocks.z < 65536,
        "kernel %s: a grid of %d x %d x %d", grid.kernel, grid.blocks.x, grid.blocks.y,
        grid.blocks.z);
  Check(grid.shared_bytes <= kSharedBytesOfABlock,
        "kernel %s: %d bytes of shared memory, of which every card has %d", grid.kernel,
        grid.shared_bytes, kSharedBytesOfABlock);
  int64_t most = most_shared_bytes;
  while (most < grid.shared_bytes &&
         !most_shared_bytes.compare_exchange_weak(most, grid.shared_bytes)) {
  }
  const bool backwards = ThisBlock().NextRandom() % 2 != 0;
  for (int64_t i = 0; i < blocks; ++i) {
    ThisBlock().Run(grid, IndexOf(backwards ? blocks - 1 - i : i, grid.blocks), body);
  }
}

void MeetBlock() { ThisBlock().Yield(State::kAtBlock, Meeting::kBlockBarrier); }
void MeetWarp(Meeting meeting) { ThisBlock().Yield(State::kAtWarp, meeting); }

void Exchange(Meeting meeting, const void* given, int bytes) {
  Fiber& fiber = ThisBlock().running();
  ++fiber.exchanges;
  std::memcpy(fiber.GivenIn(fiber.exchanges), given, static_cast<size_t>(bytes));
  MeetWarp(meeting);
}

const std::byte* GivenBy(int lane) {
  return ThisBlock().LaneOfWarp(lane).GivenIn(ThisBlock().running().exchanges);
}
int Lane() { return ThisBlock().running().lane(); }
std::byte* BlockSharedMemory() { return ThisBlock().shared(); }
int64_t BlockSharedBytes() { return ThisBlock().shared_bytes(); }
int ThreadOfBlock() { return ThisBlock().running().id; }
int ThreadsOfBlock() { return ThisBlock().threads(); }
const char* KernelOfBlock() { return ThisBlock().kernel(); }
int64_t MostSharedBytes() { return most_shared_bytes; }

void DeferCopy(void* to, const void* from, bool zero) {
  std::memset(to, std::to_integer<int>(kUnwritten), kCopyBytes);
  ThisBlock().running().copies.back().push_back({to, from, zero});
}
void CommitDeferredCopies() { ThisBlock().running().copies.emplace_back(); }
void WaitForDeferredCopies(int groups_left) {
  auto& groups = ThisBlock().running().copies;
  while (static_cast<int>(groups.size()) - 1 > groups_left) {
    for (const DeferredCopy& copy : groups.front()) Perform(copy);
    ThisBlock().running().unfenced_copies |= !groups.front().empty();
    groups.pop_front();
  }
}
void FenceCopies() { ThisBlock().running().unfenced_copies = false; }
int UnfencedCopier() { return ThisBlock().unfenced_copier(); }

}  // namespace twinstream::gpu
