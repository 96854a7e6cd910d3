// Loops over rows on several threads. No kernel starts threads in another way, oneDNN's products
// apart.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace twinstream::TWINSTREAM_CPU_ISA {

// Rows or columns [begin, end) of a matrix.
struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// How many contiguous ranges of at least `grain` rows ParallelRanges should split `rows` into: at
// most one per thread, one when the caller is already one of several threads.
inline int64_t RangeCount(int64_t rows, int64_t grain) {
  if (omp_in_parallel() != 0) return 1;
  return std::clamp<int64_t>(rows / std::max<int64_t>(grain, 1), 1, omp_get_max_threads());
}

// Calls f(range, begin, end) once for each of `ranges` contiguous parts of [0, rows), each on its
// own thread. The split depends on rows and ranges alone. Parts may be empty.
template <class F>
void ParallelRanges(int64_t rows, int64_t ranges, F f) {
  if (ranges <= 1) {
    f(int64_t{0}, int64_t{0}, rows);
    return;
  }
  const int threads = static_cast<int>(ranges);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int64_t range = 0; range < ranges; ++range) {
    f(range, rows * range / ranges, rows * (range + 1) / ranges);
  }
}

// Calls f(begin, end) on contiguous ranges that cover [0, rows). Stays on the calling thread when
// there are fewer than two grains of rows, or when it is already one of several.
template <class F>
void ParallelRows(int64_t rows, int64_t grain, F f) {
  ParallelRanges(rows, RangeCount(rows, grain),
                 [&f](int64_t, int64_t begin, int64_t end) { f(begin, end); });
}

// The grain of a loop whose rows take about `work` operations each: below about 16 thousand
// operations a thread costs more to wake than it saves.
inline int64_t GrainFor(int64_t work) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(work, 1));
}

// This thread's temporaries, until the next call: grown at the first step, the same memory
// afterwards; aligned to a cache line. `Owner` keeps the memory of kernels that call each
// other apart.
template <class Owner>
float* ThreadScratch(int64_t floats) {
  constexpr size_t kLine = 64;
  thread_local std::vector<float> memory;
  const size_t needed = static_cast<size_t>(floats) + kLine / sizeof(float);
  if (memory.size() < needed) memory.resize(needed);
  void* begin = memory.data();
  size_t bytes = memory.size() * sizeof(float);
  return static_cast<float*>(std::align(kLine, 1, begin, bytes));
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
