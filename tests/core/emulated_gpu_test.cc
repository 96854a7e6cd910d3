// The emulation of CUDA kernels itself: every fault that it is there to find is planted once, and
// its primitives do what native/gpu/primitives.h says of their twins.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/cuda/device.h"
#include "core/cuda/workspace.h"
#include "gpu/primitives.h"
#include "tests/testing/near.h"
#include "tests/testing/vectors.h"

namespace twinstream::gpu {
namespace {

using twinstream::testing::RandomFloats;

constexpr int kThreads = 96;  // three warps

template <class... Parameters, class... Arguments>
void RunGrid(void (*kernel)(Parameters...), const LaunchShape& shape, Arguments... arguments) {
  Launch("faulty", kernel, shape, Stream(), arguments...);
}

// Barriers.

template <bool kBarrier>
void Reverse(int* out) {
  int* const shared = SharedMemory<int>();
  const int thread = static_cast<int>(threadIdx.x);
  shared[thread] = thread;
  if (kBarrier) SyncBlock();
  out[thread] = shared[kThreads - 1 - thread];
}

TEST(CudaEmulator, AMissingBarrierGivesAWrongResult) {
  const LaunchShape shape = {
      .blocks = 1, .threads = kThreads, .shared_bytes = kThreads * int64_t{sizeof(int)}};
  std::vector<int> expected(kThreads), out(kThreads);
  std::iota(expected.rbegin(), expected.rend(), 0);
  for (int launch = 0; launch < 10; ++launch) {
    RunGrid(Reverse<true>, shape, out.data());
    EXPECT_EQ(out, expected);
    RunGrid(Reverse<false>, shape, out.data());
    EXPECT_NE(out, expected);
  }
}

// A sum of neighbours in place: what a lane reads, another overwrites.
template <bool kBarrier>
void AddNext(int* values) {
  const int next = values[(threadIdx.x + 1) % kWarpLanes];
  if (kBarrier) SyncWarp();
  values[threadIdx.x] += next;
}

TEST(CudaEmulator, AMissingWarpBarrierGivesAWrongResult) {
  for (int launch = 0; launch < 10; ++launch) {
    std::vector<int> right(kWarpLanes, 1), wrong(kWarpLanes, 1);
    RunGrid(AddNext<true>, {.blocks = 1, .threads = kWarpLanes}, right.data());
    EXPECT_EQ(right, std::vector<int>(kWarpLanes, 2));
    RunGrid(AddNext<false>, {.blocks = 1, .threads = kWarpLanes}, wrong.data());
    EXPECT_NE(wrong, right);
  }
}

void BarrierOrShuffle() {
  if (threadIdx.x < 40) {
    SyncWarp();
  } else {
    Shuffle(1, 0);
  }
}

void BlockBarrierOrShuffle() {
  if (threadIdx.x < 40) {
    SyncBlock();
  } else {
    Shuffle(1, 0);
  }
}

TEST(CudaEmulatorDeathTest, LanesThatWaitInDifferentMeetingsAreNamed) {
  const LaunchShape shape = {.blocks = {2, 3}, .threads = kThreads};
  EXPECT_DEATH(RunGrid(BarrierOrShuffle, shape),
               "faulty, block .*thread 32 waits in a warp's barrier, thread 40 in a shuffle");
  EXPECT_DEATH(RunGrid(BlockBarrierOrShuffle, shape),
               "faulty, block .*thread 40 waits in a shuffle, thread 32 in a block's barrier");
}

TEST(CudaEmulatorDeathTest, AThreadThatReturnsBeforeABarrierIsFound) {
  const auto some_return = +[] {
    if (threadIdx.x >= 7) SyncBlock();
  };
  EXPECT_DEATH(RunGrid(some_return, {.blocks = 1, .threads = kThreads}),
               "faulty: 89 threads of a block wait in its barrier, 7 have returned");
}

TEST(CudaEmulator, LanesThatHaveReturnedAreNotWaitedFor) {
  const auto some_return = +[](int* out) {
    if (threadIdx.x >= 16) return;
    SyncWarp();
    out[threadIdx.x] = ShuffleXor(static_cast<int>(threadIdx.x), 8);
  };
  std::vector<int> out(16);
  RunGrid(some_return, {.blocks = 1, .threads = kWarpLanes}, out.data());
  EXPECT_EQ(out, std::vector<int>({8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}));
}

// Exchanges.

TEST(CudaEmulatorDeathTest, AShuffleFromALaneThatTakesNoPartIsFound) {
  const auto from_returned = +[] {
    if (threadIdx.x != 5) Shuffle(1, 5);
  };
  EXPECT_DEATH(RunGrid(from_returned, {.blocks = 1, .threads = kThreads}),
               "reads lane 5, which takes");
  const auto all_lanes = +[] { ShuffleXor(1, 16); };
  EXPECT_DEATH(RunGrid(all_lanes, {.blocks = 1, .threads = 16}),
               "lane .* reads lane .*, which takes");
  const auto from_next_warp = +[] { Shuffle(1, kWarpLanes); };
  EXPECT_DEATH(RunGrid(from_next_warp, {.blocks = 1, .threads = kThreads}), "reads lane 32, which");
  const auto from_warp_before = +[] { Shuffle(1, -1); };
  EXPECT_DEATH(RunGrid(from_warp_before, {.blocks = 1, .threads = kThreads}),
               "reads lane -1, which");
}

TEST(CudaEmulator, ShufflesInARowDoNotDisturbEachOther) {
  const auto sums = +[](int64_t* out) {
    int64_t sum = threadIdx.x;
    for (int mask = 1; mask < kWarpLanes; mask *= 2) sum += ShuffleXor(sum, mask);
    out[threadIdx.x] = sum * 100 + Shuffle(int64_t{threadIdx.x}, (threadIdx.x + 1) % kWarpLanes);
  };
  std::vector<int64_t> out(kThreads);
  RunGrid(sums, {.blocks = 1, .threads = kThreads}, out.data());
  for (int64_t thread = 0; thread < kThreads; ++thread) {
    const int64_t first = thread / kWarpLanes * kWarpLanes;
    const int64_t sum = kWarpLanes * first + kWarpLanes * (kWarpLanes - 1) / 2;
    EXPECT_EQ(out[static_cast<size_t>(thread)], sum * 100 + first + (thread + 1) % kWarpLanes);
  }
}

// Memory.

void WriteAt(float* values, int64_t index) { values[index] = 1; }

// On a device, in a tensor of three float32, which are 12 bytes.
void WriteInDeviceMemory(int64_t index) {
  CudaDevice device(/*card=*/0);
  const Storage three(device, 3 * sizeof(float));
  RunGrid(WriteAt, {.blocks = 1, .threads = 1}, reinterpret_cast<float*>(three.data()), index);
}

TEST(CudaEmulatorDeathTest, AWriteOutsideOfAnAllocationIsFound) {
  WriteInDeviceMemory(2);
  EXPECT_DEATH(WriteInDeviceMemory(3), "a kernel wrote behind the end of 12 bytes");
  EXPECT_DEATH(WriteInDeviceMemory(4), "");  // a segmentation fault
  EXPECT_DEATH(WriteInDeviceMemory(-1), "a kernel wrote in front of 12 bytes");
}

void WriteShared(int64_t index) { SharedMemory<float>()[index] = 1; }

TEST(CudaEmulatorDeathTest, AnAccessOutsideOfSharedMemoryIsFound) {
  const LaunchShape shape = {.blocks = 1, .threads = 1, .shared_bytes = 31 * sizeof(float)};
  RunGrid(WriteShared, shape, int64_t{30});
  EXPECT_DEATH(RunGrid(WriteShared, shape, int64_t{31}),
               "faulty wrote behind the end of 124 bytes of shared memory");
  EXPECT_DEATH(RunGrid(WriteShared, shape, int64_t{32}), "");  // a segmentation fault
  const auto read = +[](float* out) { *out = SharedMemory<float>()[32]; };
  float out = 0;
  EXPECT_DEATH(RunGrid(read, shape, &out), "");
}

TEST(CudaEmulator, SharedMemoryIsNanUntilItIsWritten) {
  const auto read = +[](float* out) { *out = SharedMemory<float>()[0]; };
  float out = 0;
  RunGrid(WriteShared, {.blocks = 1, .threads = 1, .shared_bytes = 4}, int64_t{0});
  RunGrid(read, {.blocks = 1, .threads = 1, .shared_bytes = 4}, &out);
  EXPECT_TRUE(std::isnan(out));
}

TEST(CudaEmulatorDeathTest, ALaunchThatNoCardTakesIsFound) {
  const auto nothing = +[] {};
  EXPECT_DEATH(RunGrid(nothing, {.blocks = 0, .threads = 1}), "a grid of 0 x 1 x 1");
  EXPECT_DEATH(RunGrid(nothing, {.blocks = {1, 65536}, .threads = 1}), "a grid of 1 x 65536 x 1");
  EXPECT_DEATH(RunGrid(nothing, {.blocks = 1, .threads = 0}), "0 threads in a block");
  EXPECT_DEATH(RunGrid(nothing, {.blocks = 1, .threads = {32, 33}}), "1056 threads in a block");
  EXPECT_DEATH(
      RunGrid(nothing, {.blocks = 1, .threads = 1, .shared_bytes = kSharedBytesOfABlock + 1}),
      absl::StrFormat("%d bytes of shared memory, of which every card has %d",
                      kSharedBytesOfABlock + 1, kSharedBytesOfABlock));
}

// Asynchronous copies.

struct alignas(16) Vector {
  float values[4];
};

// in: two vectors. out: the first element of both, before any wait, after a wait for all but one
// group, after a wait for all.
void CopyTwo(float* out, const Vector* in) {
  Vector* const shared = SharedMemory<Vector>();
  shared[0] = shared[1] = {};
  const auto look = [&](int time) {
    for (int i = 0; i < 2; ++i) out[time * 2 + i] = shared[i].values[0];
  };
  for (int i = 0; i < 2; ++i) {
    CopyAsync16(&shared[i], &in[i], /*valid=*/true);
    CommitCopies();
  }
  look(0);
  WaitForCopies<1>();
  look(1);
  WaitForCopies<0>();
  look(2);
}

TEST(CudaEmulator, AnAsynchronousCopyIsThereAfterItsWaitAndNotBefore) {
  const Vector in[] = {{{1, 2, 3, 4}}, {{5, 6, 7, 8}}};
  std::vector<float> out(6);
  RunGrid(CopyTwo, {.blocks = 1, .threads = 1, .shared_bytes = 2 * sizeof(Vector)}, out.data(), in);
  EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]) && std::isnan(out[3]));
  EXPECT_EQ(out[2], 1);
  EXPECT_EQ(out[4], 1);
  EXPECT_EQ(out[5], 5);
}

TEST(CudaEmulator, AnInvalidCopyWritesZerosAndReadsNothing) {
  const auto copy = +[](Vector* out) {
    CopyAsync16(SharedMemory<Vector>(), nullptr, /*valid=*/false);
    CommitCopies();
    WaitForCopies<0>();
    *out = *SharedMemory<Vector>();
  };
  Vector out = {{1, 2, 3, 4}};
  RunGrid(copy, {.blocks = 1, .threads = 1, .shared_bytes = sizeof(Vector)}, &out);
  for (float value : out.values) EXPECT_EQ(value, 0);
}

TEST(CudaEmulatorDeathTest, AFaultyAsynchronousCopyIsFound) {
  const LaunchShape shape = {.blocks = 1, .threads = 1, .shared_bytes = 2 * sizeof(Vector)};
  const Vector in = {};
  const auto never_awaited = +[](const Vector* from) {
    CopyAsync16(SharedMemory<Vector>(), from, true);
    CommitCopies();
  };
  EXPECT_DEATH(RunGrid(never_awaited, shape, &in), "thread 0 returned without waiting");
  const auto never_committed = +[](const Vector* from) {
    CopyAsync16(SharedMemory<Vector>(), from, true);
    WaitForCopies<0>();
  };
  EXPECT_DEATH(RunGrid(never_committed, shape, &in), "thread 0 returned without waiting");
  const auto unaligned =
      +[](const Vector* from) { CopyAsync16(SharedMemory<Vector>(), from->values + 1, true); };
  EXPECT_DEATH(RunGrid(unaligned, shape, &in), "an asynchronous copy off 16 bytes");
}

// Tensor cores. a: [16, 16], b: [16, 8], d: [16, 8], row-major, float32 that bf16 can hold.
void Multiply(float* d, const float* a, const float* b) {
  const int g = static_cast<int>(threadIdx.x) / 4, p = static_cast<int>(threadIdx.x) % 4;
  uint32_t left[4], right[2];
  float sums[4];
  for (int i = 0; i < 4; ++i) {
    const float* const pair = a + (g + 8 * (i % 2)) * 16 + 2 * p + 8 * (i / 2);
    left[i] = PackBFloat16(pair[0], pair[1]);
    sums[i] = d[(g + 8 * (i / 2)) * 8 + 2 * p + i % 2];
  }
  for (int i = 0; i < 2; ++i) {
    const float* const pair = b + (2 * p + 8 * i) * 8 + g;
    right[i] = PackBFloat16(pair[0], pair[8]);
  }
  MmaBFloat16(sums, left, right);
  for (int i = 0; i < 4; ++i) d[(g + 8 * (i / 2)) * 8 + 2 * p + i % 2] = sums[i];
}

TEST(CudaEmulator, AProductOfFragmentsIsThatOfTheirMatrices) {
  const std::vector<float> a = RandomFloats(16 * 16, 1, DType::kBF16);
  const std::vector<float> b = RandomFloats(16 * 8, 2, DType::kBF16);
  std::vector<float> d = RandomFloats(16 * 8, 3);
  std::vector<double> expected(d.begin(), d.end());
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < 8; ++j) {
      for (size_t k = 0; k < 16; ++k) {
        expected[i * 8 + j] += static_cast<double>(a[i * 16 + k]) * b[k * 8 + j];
      }
    }
  }
  RunGrid(Multiply, {.blocks = 1, .threads = kWarpLanes}, d.data(), a.data(), b.data());
  EXPECT_LE(twinstream::testing::RelativeError(d, expected),
            twinstream::testing::Float32Tolerance(16));
}

// Matrix i of four, whose rows are 8 consecutive numbers of 16 bits, 64 i + 8 row + column; of an
// odd matrix the rows lie in reverse order.
template <bool kTransposed>
void Load(uint32_t* out) {
  BFloat16* const shared = SharedMemory<BFloat16>();
  const int lane = static_cast<int>(threadIdx.x), matrix = lane / 8, row = lane % 8;
  BFloat16* const to = shared + 64 * matrix + 8 * (matrix % 2 == 0 ? row : 7 - row);
  for (int c = 0; c < 8; ++c) to[c].bits = static_cast<uint16_t>(64 * matrix + 8 * row + c);
  SyncWarp();
  uint32_t fragment[4];
  kTransposed ? LoadMatricesTransposed(fragment, to) : LoadMatrices(fragment, to);
  std::copy_n(fragment, 4, out + 4 * lane);
}

TEST(CudaEmulator, LanesGetTheirElementsOfFourMatrices) {
  const LaunchShape shape = {.blocks = 1, .threads = kWarpLanes, .shared_bytes = 512};
  std::vector<uint32_t> plain(4 * kWarpLanes), transposed(4 * kWarpLanes);
  RunGrid(Load<false>, shape, plain.data());
  RunGrid(Load<true>, shape, transposed.data());
  const auto element = [](uint32_t matrix, uint32_t row, uint32_t column) {
    return 64 * matrix + 8 * row + column;
  };
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    const uint32_t g = lane / 4, p = lane % 4;
    for (uint32_t i = 0; i < 4; ++i) {
      EXPECT_EQ(plain[4 * lane + i], element(i, g, 2 * p) | element(i, g, 2 * p + 1) << 16);
      EXPECT_EQ(transposed[4 * lane + i], element(i, 2 * p, g) | element(i, 2 * p + 1, g) << 16);
    }
  }
}

TEST(CudaEmulatorDeathTest, AMatrixLoadOffSixteenBytesIsFound) {
  const auto load = +[] {
    uint32_t fragment[4];
    LoadMatrices(fragment, SharedMemory<BFloat16>() + 1);
  };
  EXPECT_DEATH(RunGrid(load, {.blocks = 1, .threads = kWarpLanes, .shared_bytes = 512}),
               "a matrix load of a row off 16 bytes");
}

// Grids.

TEST(CudaEmulator, EveryThreadOfAGridRunsOnce) {
  const auto count = +[](int* out) {
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    ++out[block * 24 + thread];
  };
  std::vector<int> out(24 * 24);
  RunGrid(count, {.blocks = {2, 3, 4}, .threads = {4, 3, 2}}, out.data());
  EXPECT_EQ(out, std::vector<int>(24 * 24, 1));
}

// Blocks that write and read the same memory have different results from launch to launch.
TEST(CudaEmulator, TheOrderOfTheBlocksChanges) {
  const auto write = +[](int* last) { *last = static_cast<int>(blockIdx.x); };
  std::set<int> seen;
  for (int launch = 0; launch < 20; ++launch) {
    int last = -1;
    RunGrid(write, {.blocks = 5, .threads = 1}, &last);
    seen.insert(last);
  }
  EXPECT_GT(seen.size(), 1U);
}

TEST(CudaEmulator, HostThreadsEmulateAtTheSameTime) {
  std::vector<std::vector<int>> results(4, std::vector<int>(kThreads));
  std::vector<std::thread> threads;
  for (std::vector<int>& result : results) {
    threads.emplace_back([&result] {
      for (int launch = 0; launch < 50; ++launch) {
        RunGrid(Reverse<true>, {.blocks = 7, .threads = kThreads, .shared_bytes = 4 * kThreads},
                result.data());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<int>& result : results) {
    for (int i = 0; i < kThreads; ++i) EXPECT_EQ(result[static_cast<size_t>(i)], kThreads - 1 - i);
  }
}

}  // namespace
}  // namespace twinstream::gpu
