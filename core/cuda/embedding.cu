// Embedding lookup and its gradient on a CUDA device.
//
// The gradient must be added in ascending n to each row of the table, and must not be slow where a
// token occurs often. So the tokens are sorted by row with a stable radix sort, whose cost depends
// on their number alone, and each row's run is added by the threads of its columns, one token after
// another. Floors, of N tokens with U different rows: forward 2 N C SizeOf(T) bytes, backward
// N C SizeOf(T) + 8 U C; the sort's 8 N bytes per pass stay in the L2 cache.
#include <algorithm>
#include <limits>
#include <utility>

#include "core/activation_type.h"
#include "core/cuda/kernel.h"
#include "core/cuda/ops.h"
#include "core/op_checks.h"

namespace twinstream {
namespace {

using gpu::CeilingOfQuotient;
using gpu::Launch;
using gpu::LoadValues;
using gpu::StoreValues;

// The row of `token` in the table of ids begin .. begin + table_rows - 1; table_rows where it has
// none.
__device__ int32_t RowOf(int32_t token, int64_t begin, int32_t table_rows) {
  const int64_t row = token - begin;
  return 0 <= row && row < table_rows ? static_cast<int32_t>(row) : table_rows;
}

// One block per token.
template <class T>
__global__ void ForwardKernel(T* out, const int32_t* tokens, const T* table, int64_t C,
                              int64_t begin, int32_t table_rows) {
  const int32_t row = RowOf(tokens[blockIdx.x], begin, table_rows);
  T* const to = out + blockIdx.x * C;
  const T* const from = table + row * C;
  gpu::ForEachPack<gpu::kPack<T>>(gpu::ShareOfBlock(), C, gpu::Aligned(to, from),
                                  [=]<int kWidth>(std::integral_constant<int, kWidth>, int64_t j) {
                                    float values[kWidth] = {};
                                    if (row < table_rows) LoadValues(values, from + j);
                                    StoreValues(to + j, values);
                                  });
}

struct Entry {
  int32_t row;  // table_rows: not of the table
  int32_t n;    // where the token stands
};

__global__ void MakeEntriesKernel(Entry* entries, const int32_t* tokens, int64_t N, int64_t begin,
                                  int32_t table_rows) {
  const gpu::Share share = gpu::ShareOfGrid();
  for (int64_t n = share.first; n < N; n += share.stride) {
    entries[n] = {RowOf(tokens[n], begin, table_rows), static_cast<int32_t>(n)};
  }
}

// One pass of the sort orders the entries by one digit of their rows. A block has one chunk of
// them, a thread one entry.
__device__ int DigitOf(const Entry& entry, int shift) {
  return entry.row >> shift & (kSortDigits - 1);
}

// ranks[i]: entries of i's chunk before i with its digit. counts [kSortDigits, chunks], zero on
// entry: entries of each digit in each chunk.
__global__ void CountDigitsKernel(int* counts, int* ranks, const Entry* entries, int64_t N,
                                  int shift) {
  int* const digits = gpu::SharedMemory<int>();
  const int64_t i = int64_t{blockIdx.x} * kSortChunk + threadIdx.x;
  const int digit = i < N ? DigitOf(entries[i], shift) : -1;
  digits[threadIdx.x] = digit;
  gpu::SyncBlock();
  int before = 0, all = 0;
  for (int other = 0; other < kSortChunk; ++other) {
    const int same = digits[other] == digit ? 1 : 0;
    all += same;
    before += other < gpu::ThisThread() ? same : 0;
  }
  if (i >= N) return;
  ranks[i] = before;
  if (before == 0) counts[int64_t{digit} * gridDim.x + blockIdx.x] = all;
}

// Replaces every count by the sum of those before it. One block; each thread takes a part without
// gaps.
constexpr int kScanThreads = 1024;

__global__ void __launch_bounds__(kScanThreads) SumCountsBeforeKernel(int* counts, int64_t count) {
  int* const warp_totals = gpu::SharedMemory<int>();
  const int64_t part = CeilingOfQuotient(count, kScanThreads);
  const int64_t begin = gpu::ThisThread() * part, end = begin + part < count ? begin + part : count;
  int total = 0;
  for (int64_t i = begin; i < end; ++i) total += counts[i];
  const int up_to = gpu::WarpPrefixSum(total);  // of the lanes up to this one
  if (gpu::ThisLane() == gpu::kWarpLanes - 1) warp_totals[gpu::ThisWarp()] = up_to;
  gpu::SyncBlock();
  int before = up_to - total;
  for (int warp = 0; warp < gpu::ThisWarp(); ++warp) before += warp_totals[warp];
  for (int64_t i = begin; i < end; ++i) {
    const int value = counts[i];
    counts[i] = before;
    before += value;
  }
}

// offsets: the counts after SumCountsBeforeKernel.
__global__ void MoveEntriesKernel(Entry* to, const Entry* entries, const int* offsets,
                                  const int* ranks, int64_t N, int shift) {
  const int64_t i = int64_t{blockIdx.x} * kSortChunk + threadIdx.x;
  if (i >= N) return;
  const int64_t count_at = int64_t{DigitOf(entries[i], shift)} * gridDim.x + blockIdx.x;
  to[offsets[count_at] + ranks[i]] = entries[i];
}

constexpr int kAddThreads = 128;
constexpr int kAddBatch = 16;  // tokens whose gradients a thread loads before it adds the first

// sum += the gradients of kBatch tokens, one after another: of lanes lane .. lane + kBatch - 1 of
// the warp, each of which has its token's n. column_data: dout at this thread's columns.
template <int kBatch, int kWidth, class T>
__device__ void AddTokens(float (&sum)[kWidth], const T* column_data, int64_t C, int32_t n,
                          int lane) {
  float gradients[kBatch][kWidth];
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    LoadValues(gradients[i], column_data + gpu::Shuffle(n, lane + i) * C);
  }
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    for (int j = 0; j < kWidth; ++j) sum[j] += gradients[i][j];
  }
}

// Block (i, y) adds the run of sorted entries that begins at i, if one does, to part y of the
// columns.
template <int kWidth, class T>
__global__ void AddRunsKernel(float* dtable, const T* dout, const Entry* entries, int64_t N,
                              int64_t C, int32_t table_rows) {
  const int64_t first = blockIdx.x;
  const int32_t row = entries[first].row;
  if (row == table_rows || (first > 0 && entries[first - 1].row == row)) return;
  const int64_t own_column = (int64_t{blockIdx.y} * kAddThreads + threadIdx.x) * kWidth;
  const int64_t column = own_column < C ? own_column : 0;  // others only help their warp
  float* const to = dtable + row * C + column;
  float sum[kWidth];
  LoadValues(sum, to);
  const int lane = gpu::ThisLane();
  int run = gpu::kWarpLanes;  // of the entries that the warp looks at, the row's
  for (int64_t at = first; run == gpu::kWarpLanes; at += gpu::kWarpLanes) {
    const Entry entry = at + lane < N ? entries[at + lane] : Entry{table_rows, 0};
    run = gpu::WarpSum(entry.row == row ? 1 : 0);
    int i = 0;
    for (; i + kAddBatch <= run; i += kAddBatch) {
      AddTokens<kAddBatch>(sum, dout + column, C, entry.n, i);
    }
    for (; i < run; ++i) AddTokens<1>(sum, dout + column, C, entry.n, i);
  }
  if (own_column < C) StoreValues(to, sum);
}

// Rows and tokens are counted in 32 bits.
void CheckCounts(Tensor tokens, Tensor table) {
  Check(std::max(table.dim(0), tokens.elements()) <= std::numeric_limits<int32_t>::max(),
        "an embedding of %s tokens in a table %s", tokens.shape(), table.shape());
}

struct SortMemory {
  Entry *entries, *sorted;  // [N] each
  int *ranks, *counts;      // [N], [kSortDigits, chunks]
};

SortMemory SortMemoryIn(const Workspace& workspace, int64_t N) {
  auto* const entries = workspace.As<Entry>(EmbeddingBackwardBytes(N));
  int* const ranks = reinterpret_cast<int*>(entries + 2 * N);
  return {entries, entries + N, ranks, ranks + N};
}

// The tokens' entries in order of their rows and, for each row, of the tokens.
const Entry* SortedEntries(SortMemory memory, Tensor tokens, int64_t begin, int32_t table_rows,
                           gpu::LaunchShape shape, gpu::Stream stream) {
  const int64_t N = tokens.elements(), chunks = shape.blocks.x;
  Launch("MakeEntries", MakeEntriesKernel, shape, stream, memory.entries, tokens.As<int32_t>(), N,
         begin, table_rows);
  for (int shift = 0; shift < 31 && table_rows >> shift > 0; shift += kSortDigitBits) {
    gpu::Clear(reinterpret_cast<std::byte*>(memory.counts),
               kSortDigits * chunks * static_cast<int64_t>(sizeof(int)), stream);
    Launch("CountDigits", CountDigitsKernel, shape, stream, memory.counts, memory.ranks,
           memory.entries, N, shift);
    Launch("SumCountsBefore", SumCountsBeforeKernel,
           {.blocks = 1,
            .threads = kScanThreads,
            .shared_bytes = kScanThreads / gpu::kWarpLanes * sizeof(int)},
           stream, memory.counts, kSortDigits * chunks);
    Launch("MoveEntries", MoveEntriesKernel, shape, stream, memory.sorted, memory.entries,
           memory.counts, memory.ranks, N, shift);
    std::swap(memory.entries, memory.sorted);
  }
  return memory.entries;
}

// dtable += the runs of sorted entries.
template <int kWidth, class T>
void AddRuns(Tensor dtable, Tensor dout, const Entry* entries, gpu::Stream stream) {
  const int64_t N = dout.dim(0), C = dout.dim(1);
  constexpr int64_t kColumns = kAddThreads * kWidth;  // of a block
  Launch(
      "EmbeddingBackward", AddRunsKernel<kWidth, T>,
      {.blocks = {static_cast<unsigned>(N), static_cast<unsigned>(CeilingOfQuotient(C, kColumns))},
       .threads = kAddThreads},
      stream, dtable.As<float>(), dout.As<T>(), entries, N, C, static_cast<int32_t>(dtable.dim(0)));
}

}  // namespace

void CudaOps::EmbeddingForward(Tensor out, Tensor tokens, Tensor table, int64_t begin) const {
  CheckEmbeddingForward(out, tokens, table);
  CheckCounts(tokens, table);
  if (out.elements() == 0) return;
  WithActivationType(out.dtype(), [&]<class T>(std::type_identity<T>) {
    Launch("EmbeddingForward", ForwardKernel<T>,
           {.blocks = static_cast<unsigned>(out.dim(0)), .threads = 128}, stream_, out.As<T>(),
           tokens.As<int32_t>(), table.As<T>(), out.dim(1), begin,
           static_cast<int32_t>(table.dim(0)));
  });
}

void CudaOps::EmbeddingBackward(Tensor dtable, Tensor tokens, Tensor dout, int64_t begin) const {
  CheckEmbeddingBackward(dtable, tokens, dout);
  CheckCounts(tokens, dtable);
  if (dout.elements() == 0 || dtable.elements() == 0) return;
  const int64_t N = tokens.elements(), chunks = CeilingOfQuotient(N, kSortChunk);
  const Entry* const entries =
      SortedEntries(SortMemoryIn(workspace_, N), tokens, begin, static_cast<int32_t>(dtable.dim(0)),
                    {.blocks = static_cast<unsigned>(chunks),
                     .threads = kSortChunk,
                     .shared_bytes = kSortChunk * sizeof(int)},
                    stream_);
  WithActivationType(dout.dtype(), [&]<class T>(std::type_identity<T>) {
    gpu::WithWidth<gpu::kPack<float>>(dout.dim(1), gpu::Aligned(dtable.data(), dout.data()),
                                      [&]<int kWidth>(std::integral_constant<int, kWidth>) {
                                        AddRuns<kWidth, T>(dtable, dout, entries, stream_);
                                      });
  });
}

}  // namespace twinstream
