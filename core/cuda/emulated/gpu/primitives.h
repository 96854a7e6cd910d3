// The emulated twin of native/gpu/primitives.h, where every function is described. CMake gives the
// compiler the names that have no meaning here: __global__, __device__, __host__ and
// __launch_bounds__ are empty.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/bfloat16.h"
#include "core/check.h"
#include "core/cuda/check.h"
#include "core/cuda/emulated/streams.h"
#include "core/cuda/stream.h"
#include "gpu/emulator.h"

namespace twinstream::gpu {

struct LaunchShape {
  dim3 blocks, threads;
  int64_t shared_bytes = 0;
};

namespace internal {
// Of a kernel; what structures point to is not looked at.
template <class T>
void CheckArgument(const T& argument) {
  if constexpr (std::is_pointer_v<T>) CheckOfNoOtherCard(argument);
}
}  // namespace internal

template <class... Parameters, class... Arguments>
void Launch(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape,
            Stream stream, Arguments... arguments) {
  CheckOnCurrentCard(stream, name);
  (internal::CheckArgument(arguments), ...);
  Issue(stream, [=] {
    Emulate({.kernel = name,
             .blocks = shape.blocks,
             .threads = shape.threads,
             .shared_bytes = shape.shared_bytes},
            [&] { kernel(arguments...); });
  });
  Check(cudaGetLastError(), name);
}

template <class T>
T* SharedMemory() {
  return reinterpret_cast<T*>(BlockSharedMemory());
}

inline void SyncBlock() { MeetBlock(); }
inline void SyncWarp() { MeetWarp(Meeting::kWarpBarrier); }
template <class T>
T ShuffleXor(T value, int mask) {
  return ExchangedWith(value, Lane() ^ mask);
}
template <class T>
T Shuffle(T value, int lane) {
  return ExchangedWith(value, lane);
}

inline float ReciprocalSqrt(float x) { return 1.0F / std::sqrt(x); }
inline float Exp(float x) { return std::exp(x); }
inline float FastExp2(float x) { return std::exp2(x); }
inline float Log(float x) { return std::log(x); }

inline int Opaque(int value) { return value; }

inline uint4 LoadStreaming(const uint4* from) { return *from; }
inline void StoreStreaming(uint4* to, uint4 value) { *to = value; }

inline uint32_t PackBFloat16(float low, float high) {
  return RoundToBFloat16(low).bits | uint32_t{RoundToBFloat16(high).bits} << 16;
}
inline float LowOf(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
inline float HighOf(uint32_t pair) { return std::bit_cast<float>(pair & 0xFFFF0000U); }

// The fragments' layouts: PTX ISA, "Matrix fragments for mma.m16n8k16" of .bf16. What a lane needs
// it asks four lanes of its rows and eight of its columns for, once each: tests spend their time
// here.
inline void MmaBFloat16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct Given {
    uint32_t a[4], b[2];
  } given = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  Exchange(Meeting::kProduct, &given, sizeof(given));
  const int group = Lane() / 4, pair = Lane() % 4;
  float sums[4] = {};
  for (int holder = 0; holder < 4; ++holder) {
    const auto* left = reinterpret_cast<const Given*>(GivenBy(group * 4 + holder));
    for (int column = 0; column < 2; ++column) {
      const auto* right = reinterpret_cast<const Given*>(GivenBy((pair * 2 + column) * 4 + holder));
      for (int row = 0; row < 2; ++row) {
        for (int half = 0; half < 2; ++half) {
          const uint32_t x = left->a[row + 2 * half], y = right->b[half];
          sums[row * 2 + column] += LowOf(x) * LowOf(y) + HighOf(x) * HighOf(y);
        }
      }
    }
  }
  for (int i = 0; i < 4; ++i) d[i] += sums[i];
}

namespace internal {
inline void LoadMatrices(uint32_t (&to)[4], const BFloat16* row, bool transposed) {
  Check(reinterpret_cast<uintptr_t>(row) % 16 == 0, "a matrix load of a row off 16 bytes");
  struct Given {
    const BFloat16* row;
  } given = {row};
  Exchange(Meeting::kMatrixLoad, &given, sizeof(given));
  const int group = Lane() / 4, pair = Lane() % 4;
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint32_t bits[2];
    for (int i = 0; i < 2; ++i) {
      const int r = transposed ? pair * 2 + i : group, c = transposed ? group : pair * 2 + i;
      bits[i] = reinterpret_cast<const Given*>(GivenBy(matrix * 8 + r))->row[c].bits;
    }
    to[matrix] = bits[0] | bits[1] << 16;
  }
}
}  // namespace internal

inline void LoadMatrices(uint32_t (&to)[4], const BFloat16* row) {
  internal::LoadMatrices(to, row, false);
}
inline void LoadMatricesTransposed(uint32_t (&to)[4], const BFloat16* row) {
  internal::LoadMatrices(to, row, true);
}

inline void CopyAsync16(void* shared, const void* global, bool valid) {
  Check(reinterpret_cast<uintptr_t>(shared) % 16 == 0 &&
            (!valid || reinterpret_cast<uintptr_t>(global) % 16 == 0),
        "an asynchronous copy off 16 bytes");
  DeferCopy(shared, global, !valid);
}
inline void CommitCopies() { CommitDeferredCopies(); }
template <int kGroupsLeft>
void WaitForCopies() {
  WaitForDeferredCopies(kGroupsLeft);
}

}  // namespace twinstream::gpu
