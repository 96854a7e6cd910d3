// Ops::GroupedMatmul on a CUDA device: bf16 groups by a kernel of its own, up to kMostGroups in one
// launch. A product of cuBLASLt for each group would leave most of the card idle, as one expert has
// few rows, and cost the host a call and cuBLASLt a check (matrix_products.cc) for each.
//
// Floor: 2 M N K FLOPs of every group, 990 TFLOP/s on an H100, or its operands read and its result
// written once. mma.sync reaches some 0.62 of that rate (the rest is wgmma's alone), a step of the
// sum in 1650 clocks of a multiprocessor; shared memory needs 1410 of them. A step also brings 48
// KB from the second-level cache, whose 5.5 TB/s let 470 TFLOP/s through. None of it is measured.
#include <array>
#include <cstdint>
#include <limits>

#include "core/cuda/ops.h"
#include "core/cuda/tiles.h"
#include "core/grouped_products.h"

namespace twinstream {
namespace gpu {
namespace {

// A block has kRows x kColumns of a group's result and meets the operands kStep terms of the sum at
// a time, kStages steps of them in shared memory: one is multiplied, the others are on their way. A
// warp has 64 x 64 of the result.
constexpr int kRows = 128, kColumns = 256, kStep = 64, kStages = 3;
constexpr int kRowsOfWarp = 64, kColumnsOfWarp = 64;
constexpr int kWarpsOfColumns = kColumns / kColumnsOfWarp;
constexpr int kThreads = kRows / kRowsOfWarp * kWarpsOfColumns * kWarpLanes;
constexpr int kStageElements = (kRows + kColumns) * kStep;
constexpr int64_t kSharedBytes = int64_t{kStages} * kStageElements * sizeof(BFloat16);
static_assert(kSharedBytes <= kSharedBytesOfABlock);
using WarpSums = Sums<kRowsOfWarp / 16, kColumnsOfWarp / 8>;

constexpr int kMostGroups = 64;  // of a launch: its arguments stay far below 4 KB

// out [M, N] = a b or += a b, of a sum over K terms.
struct Group {
  const BFloat16 *a, *b;
  std::byte* out;
  int M, K;
  int first_tile;  // blocks of the groups before
};

struct GroupedArguments {
  int N;
  bool out_is_bf16, accumulate;
  int groups;  // with at least one tile each
  std::array<Group, kMostGroups> group;

  // Of a group's result, on this block's tile.
  __device__ Group Of(int block) const {
    int first = 0, last = groups - 1;  // among them
    while (first < last) {
      const int middle = (first + last + 1) / 2;
      if (group[static_cast<size_t>(middle)].first_tile <= block) {
        first = middle;
      } else {
        last = middle - 1;
      }
    }
    return group[static_cast<size_t>(first)];
  }
};

int TilesOf(int64_t M, int64_t N) {
  return static_cast<int>(CeilingOfQuotient(M, kRows) * CeilingOfQuotient(N, kColumns));
}

// How an operand lies in memory: the terms of the sum along its rows, or along its columns.
enum class Terms { kAlongRows, kAlongColumns };

// kExtent rows (of a) or columns (of b) of the result, out of `extent`, and their terms, K of them.
template <Terms kTerms, int kExtent>
struct Operand {
  static constexpr bool kAlongRows = kTerms == Terms::kAlongRows;
  static constexpr int kTileColumns = kAlongRows ? kStep : kExtent;
  using OperandTile = Tile<kTileColumns>;

  const BFloat16* data;
  int extent, K;

  // Starts to copy those from `begin` on, terms from `term` on.
  __device__ void Copy(OperandTile to, int begin, int term) const {
    if constexpr (kAlongRows) {
      CopyRows<kExtent, kStep, kThreads>(to, {data + term, K}, begin, extent, K - term);
    } else {
      CopyRows<kStep, kExtent, kThreads>(to, {data + begin, extent}, term, K, extent - begin);
    }
  }
  // The part of a tile that begins with its row or column 64 `part`.
  __device__ static OperandTile Part(OperandTile tile, int part) {
    return {tile.data + part * 64 * (kAlongRows ? kTileColumns : 1)};
  }
  // 16 rows, from `begin` on, of the left operand, and 16 terms, from 16 `step` on.
  __device__ static void LoadLeft(uint32_t (&to)[4], OperandTile tile, int begin, int step) {
    const int lane = Opaque(ThisLane());
    if constexpr (kAlongRows) {
      LoadMatrices(to, tile.At(begin + lane % 16, 2 * step, lane / 16));
    } else {
      LoadMatricesTransposed(
          to, tile.At(16 * step + lane / 16 * 8 + lane % 8, begin / 8, lane / 8 % 2));
    }
  }
  // The same of 16 columns of the right operand.
  __device__ static void LoadRight(uint32_t (&to)[4], OperandTile tile, int begin, int step) {
    const int lane = Opaque(ThisLane());
    if constexpr (kAlongRows) {
      LoadMatrices(to, tile.At(begin + lane / 16 * 8 + lane % 8, 2 * step, lane / 8 % 2));
    } else {
      LoadMatricesTransposed(to, tile.At(16 * step + lane % 16, begin / 8, lane / 16));
    }
  }
};

// The warp's part of both tiles, which hold kStep terms.
template <class Left, class Right>
__device__ void AddStep(WarpSums& sums, typename Left::OperandTile left,
                        typename Right::OperandTile right) {
#pragma unroll
  for (int step = 0; step < kStep / 16; ++step) {
    uint32_t rows[kRowsOfWarp / 16][4];
#pragma unroll
    for (int m = 0; m < kRowsOfWarp / 16; ++m) Left::LoadLeft(rows[m], left, 16 * m, step);
#pragma unroll
    for (int n = 0; n < kColumnsOfWarp / 16; ++n) {
      uint32_t columns[4];
      Right::LoadRight(columns, right, 16 * n, step);
      AddProducts(sums, n, rows, columns);
    }
  }
}

// Rows from `row` on and columns from `column` on; a row is N values.
__device__ void WriteSums(const Activations& out, int row, int M, int column, int N,
                          const WarpSums& sums, bool accumulate) {
#pragma unroll
  for (int m = 0; m < kRowsOfWarp / 16; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = row + 16 * m + ThisLane() / 4 + 8 * half;
      if (own >= M) continue;
      WriteRow(out, int64_t{own} * N + column, N - column, sums[m], half, /*factor=*/1,
               accumulate ? 1.0F : 0.0F);
    }
  }
}

// A block for every tile of every group, those of the same columns one after another: their rows
// find the matrix of the group in the second-level cache.
template <Terms kLeftTerms, Terms kRightTerms>
__global__ void __launch_bounds__(kThreads, 1) GroupedMatmulKernel(const GroupedArguments a) {
  using Left = Operand<kLeftTerms, kRows>;
  using Right = Operand<kRightTerms, kColumns>;
  const int block = static_cast<int>(blockIdx.x);
  const Group group = a.Of(block);
  const int tile = block - group.first_tile, row_tiles = CeilingOfQuotient(group.M, kRows);
  const int row = tile % row_tiles * kRows, column = tile / row_tiles * kColumns;
  const Left left = {group.a, group.M, group.K};
  const Right right = {group.b, a.N, group.K};

  const auto left_tile = [](int step) {
    return typename Left::OperandTile{SharedMemory<BFloat16>() + step % kStages * kStageElements};
  };
  const auto right_tile = [&](int step) {
    return typename Right::OperandTile{left_tile(step).data + kRows * kStep};
  };
  const auto copy = [&](int step) {
    if (step * kStep < group.K) {
      left.Copy(left_tile(step), row, step * kStep);
      right.Copy(right_tile(step), column, step * kStep);
    }
    CommitCopies();
  };
  const int warp_row = ThisWarp() / kWarpsOfColumns, warp_column = ThisWarp() % kWarpsOfColumns;
  WarpSums sums;
  SetToZero(sums);
  for (int step = 0; step < kStages - 1; ++step) copy(step);
  for (int step = 0; step * kStep < group.K; ++step) {
    WaitForCopies<kStages - 2>();
    SyncBlock();  // this step is there, the one before it is done with
    copy(step + kStages - 1);
    AddStep<Left, Right>(sums, Left::Part(left_tile(step), warp_row),
                         Right::Part(right_tile(step), warp_column));
  }
  WriteSums({group.out, a.out_is_bf16}, row + warp_row * kRowsOfWarp, group.M,
            column + warp_column * kColumnsOfWarp, a.N, sums, a.accumulate);
}

// The groups of one call, gathered until a launch is full.
class GroupedLaunches {
 public:
  GroupedLaunches(Tensor out, const MatmulOptions& options, Stream stream)
      : options_(options), stream_(stream) {
    arguments_.N = static_cast<int>(out.dim(1));
    arguments_.out_is_bf16 = out.dtype() == DType::kBF16;
    arguments_.accumulate = options.accumulate;
  }

  void Add(const GroupProduct& p) {
    if (arguments_.groups == kMostGroups) Launch();
    const auto [M, N, K] = p.shape;
    arguments_.group[static_cast<size_t>(arguments_.groups)] = {.a = p.a.As<BFloat16>(),
                                                                .b = p.b.As<BFloat16>(),
                                                                .out = p.out.data(),
                                                                .M = static_cast<int>(M),
                                                                .K = static_cast<int>(K),
                                                                .first_tile = tiles_};
    arguments_.groups += 1;
    tiles_ += TilesOf(M, N);
  }

  void Launch() {
    if (arguments_.groups == 0) return;
    constexpr Terms kRow = Terms::kAlongRows, kColumn = Terms::kAlongColumns;
    if (options_.transpose_a) {
      Launch(GroupedMatmulKernel<kColumn, kColumn>);
    } else if (options_.transpose_b) {
      Launch(GroupedMatmulKernel<kRow, kRow>);
    } else {
      Launch(GroupedMatmulKernel<kRow, kColumn>);
    }
    arguments_.groups = 0;
    tiles_ = 0;
  }

 private:
  void Launch(void (*kernel)(GroupedArguments)) const {
    gpu::Launch("GroupedMatmul", kernel,
                {.blocks = static_cast<unsigned>(tiles_),
                 .threads = kThreads,
                 .shared_bytes = kSharedBytes},
                stream_, arguments_);
  }

  MatmulOptions options_;
  Stream stream_;
  GroupedArguments arguments_ = {};
  int tiles_ = 0;  // of the groups so far
};

// Rows of whole words of 16 bytes, which asynchronous copies need.
bool FitsTensorCores(Tensor out, Tensor a, Tensor b) {
  constexpr int64_t kMost = std::numeric_limits<int>::max() / 2;  // the kernel counts with int
  const auto fits = [](Tensor t) {
    return Aligned(t.data()) && t.dim(1) % 8 == 0 && t.dim(0) <= kMost && t.dim(1) <= kMost;
  };
  return a.dtype() == DType::kBF16 && b.dtype() == DType::kBF16 && fits(out) && fits(a) && fits(b);
}

// A group runs alone, as a product of cuBLASLt, where that fills the card for long enough: so many
// steps of each multiprocessor. On an H100 18 are 10 GFLOP (1200 rows for a matrix of 2048 x 2048):
// 14 us at the 700 TFLOP/s that cuBLASLt reaches, 22 us at the kernel's 450. The difference pays
// for a call and for the multiprocessors that idle at its end. To be measured.
bool RunsAlone(const MatmulShape& shape, int multiprocessors) {
  constexpr int64_t kStepsOfMultiprocessor = 18;
  const int64_t steps =
      int64_t{TilesOf(shape.M, shape.N)} * CeilingOfQuotient(shape.K, int64_t{kStep});
  return steps >= kStepsOfMultiprocessor * multiprocessors;
}

}  // namespace
}  // namespace gpu

void CudaOps::GroupedMatmul(Tensor out, Tensor a, Tensor b, absl::Span<const int64_t> rows_of_group,
                            MatmulOptions options) const {
  const bool fits = gpu::FitsTensorCores(out, a, b);
  gpu::GroupedLaunches launches(out, options, stream_);
  ForEachGroup(out, a, b, rows_of_group, options, [&](const GroupProduct& p) {
    if (!fits || gpu::RunsAlone(p.shape, card_.multiprocessors)) {
      Matmul(p.out, p.a, p.b, p.options);
    } else if (p.out.elements() > 0 && (p.shape.K > 0 || !options.accumulate)) {
      launches.Add(p);
    }
  });
  launches.Launch();
}

}  // namespace twinstream
