// Runs CUDA kernels on the CPU, for tests: every thread of a block is a fiber, the blocks of a grid
// run one after another, the grids of one host thread in the order of their launches. Host threads
// know nothing of each other: each may emulate grids of its own at the same time. What a card would
// leave undefined ends the process with the kernel's name: threads of a block that disagree about
// the next barrier, lanes of a warp about the next exchange. Memory errors are caught by the guard
// pages around every allocation (emulated/memory.cc) and around a block's shared memory, or, where
// there are bytes between, by what is written there beforehand.
//
// The order in which the threads of a block advance changes from barrier to barrier, that of the
// blocks from grid to grid, both alike in every run of the program; every second time one warp runs
// to its next barrier before the others start: a kernel that lacks a barrier gives wrong results.
// What it cannot find: two divergent exchanges of the same kind, which count as one, and reads
// outside of a tensor that stay in its allocation.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/functional/function_ref.h"

// Of the fiber that runs.
inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;  // NOLINT

namespace twinstream::gpu {

constexpr int kWarpLanes = 32;
constexpr std::byte kUnwritten{0xFF};  // as a float32 or bf16: NaN

struct EmulatedGrid {
  const char* kernel = "";
  dim3 blocks, threads;
  int64_t shared_bytes = 0;  // of each block
};

// Runs `body` once for every thread of the grid.
void Emulate(const EmulatedGrid& grid, absl::FunctionRef<void()> body);
// The most shared_bytes of all grids so far.
int64_t MostSharedBytes();

// For the fiber that runs. Every barrier or exchange of a block, or of a warp's lanes, is the same
// operation in all that take part; threads that have returned take no part.
enum class Meeting {
  kBlockBarrier,
  kWarpBarrier,
  kShuffle,
  kMatrixLoad,
  kProduct,
  kProductFence,
  kProductWait
};
void MeetBlock();
void MeetWarp(Meeting meeting);
// All lanes of a warp give up to 64 bytes each; then each may read what any lane gave, until it
// takes part in the next exchange.
constexpr int kExchangeBytes = 64;
void Exchange(Meeting meeting, const void* given, int bytes);
const std::byte* GivenBy(int lane);  // dies when that lane took no part
int Lane();
std::byte* BlockSharedMemory();  // full of NaN when a block begins
int64_t BlockSharedBytes();
int ThreadOfBlock();  // the fiber's number, of so many:
int ThreadsOfBlock();
const char* KernelOfBlock();

// Asynchronous copies of 16 bytes to shared memory happen as late as a card may do them: when their
// thread waits for them. Until then NaN stands there, as a card may overwrite what was there at
// once.
void DeferCopy(void* to, const void* from, bool zero);
void CommitDeferredCopies();
void WaitForDeferredCopies(int groups_left);
// The fiber's copies that have happened so far are what products of warpgroups may read after the
// block's next barrier.
void FenceCopies();
// A thread whose copies had happened at the block's last barrier without a fence, or -1.
int UnfencedCopier();

template <class T>
T ExchangedWith(T value, int lane) {
  static_assert(sizeof(T) <= kExchangeBytes);
  Exchange(Meeting::kShuffle, &value, sizeof(T));
  std::memcpy(&value, GivenBy(lane), sizeof(T));
  return value;
}

}  // namespace twinstream::gpu
