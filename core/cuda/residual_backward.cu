// Backward of a residual site on a CUDA device: through the read of the block after, then through
// the write of the block before, in one pass. Floor: 5 rows read and 4 written (dx, dy, dh, x, y;
// dx, dy, d_o, h), 6 with an output norm (o), of one stream 3 and 2, at the bandwidth of memory.
// Gradients of weights: a block sums those of its rows in shared memory, one row after the other;
// a second kernel adds the blocks' sums, in a fixed order. Weights come from the caches.
#include <algorithm>
#include <bit>

#include "core/activation_type.h"
#include "core/cuda/ops.h"
#include "core/cuda/residual_backward_row.h"
#include "core/residual_site.h"

namespace twinstream {
namespace {

using gpu::BackwardRow;
using gpu::BackwardSite;
using gpu::BlockSums;
using gpu::Pack;
using gpu::PlaceOfFour;
using X = ResidualRead::X;
using Y = ResidualWrite::Y;

// As many rows as blocks are under way at a time.
template <class T, int kColumns>
__global__ void __launch_bounds__(gpu::MaxRowThreads(kColumns), kColumns == 8 ? 3 : 1)
    ResidualBackwardKernel(BackwardSite<T> site) {
  float* const shared = gpu::SharedMemory<float>();
  BlockSums sums(shared);
  const int floats = site.slots * site.padded_width;
  float* const block_sums = site.block_sums + int64_t{blockIdx.x} * floats;
  float* const weight_sums = kColumns > 0 ? shared + BlockSums::kFloats : block_sums;
  for (int i = 0; PlaceOfFour(i) < floats; ++i) {
    gpu::StorePack(weight_sums + PlaceOfFour(i), Pack<float>());
  }
  gpu::ForEachRow(site.N, [&](int n) {
    BackwardRow<T, kColumns> row(site, n, sums, weight_sums);
    if (site.input_weight != nullptr) row.ThroughInputNorm();
    row.ThroughSum();
    row.ThroughWrite();
    if (site.output_weight != nullptr) row.ThroughOutputNorm();
  });
  if constexpr (kColumns > 0) {
    for (int i = 0; PlaceOfFour(i) < floats; ++i) {
      gpu::StorePack(block_sums + PlaceOfFour(i), gpu::LoadPack(weight_sums + PlaceOfFour(i)));
    }
  }
}

// What the blocks of the first kernel have summed, and where it goes.
struct WeightGradients {
  float* gradients[kResidualScales] = {};  // [C] of each slot
  int slots = 0;
  const float* block_sums = nullptr;  // [blocks, slots, padded_width]
  int blocks = 0, padded_width = 0, C = 0;
  int threads = 0, pack = 0;  // of the first kernel, for the order of the columns
};

constexpr int kFours = 8;       // 128 bytes of a row of sums
constexpr int kMaxSlices = 32;  // of the blocks: threads that each add every so many-th

// gradients += the blocks' sums. blockIdx.y: the slot.
__global__ void __launch_bounds__(kFours* kMaxSlices)
    AddBlockSumsKernel(const WeightGradients sums) {
  const int slices = static_cast<int>(blockDim.x) / kFours;  // a power of two
  const int slice = gpu::ThisThread() / kFours;
  const int four = static_cast<int>(blockIdx.x) * kFours + gpu::ThisThread() % kFours;
  Pack<float> sum = {};
  if (four * 4 < sums.padded_width) {
    for (int block = slice; block < sums.blocks; block += slices) {
      const int64_t row = int64_t{block} * sums.slots + blockIdx.y;
      const Pack<float> term =
          gpu::LoadPack(sums.block_sums + row * sums.padded_width + int64_t{four} * 4);
      for (int k = 0; k < 4; ++k) sum.values[k] += term.values[k];
    }
  }
  float* const mine = gpu::SharedMemory<float>() + threadIdx.x * 4;
  gpu::StorePack(mine, sum);
  for (int half = slices / 2; half > 0; half /= 2) {
    gpu::SyncBlock();
    if (slice >= half) continue;
    const Pack<float> term = gpu::LoadPack(mine + half * kFours * 4);
    for (int k = 0; k < 4; ++k) sum.values[k] += term.values[k];
    gpu::StorePack(mine, sum);
  }
  if (slice > 0) return;
  const int fours_of_thread = four / sums.threads, thread = four % sums.threads;
  const int fours_of_pack = sums.pack / 4;
  const int pack = fours_of_thread / fours_of_pack * sums.threads + thread;
  const int column = pack * sums.pack + fours_of_thread % fours_of_pack * 4;
  for (int k = 0; k < 4 && column + k < sums.C; ++k) {
    sums.gradients[blockIdx.y][column + k] += sum.values[k];
  }
}

template <class T>
void SetRead(const ResidualRead& read, const ResidualBackwardTensors& t, BackwardSite<T>& site) {
  site.dh = t.dh.As<T>();
  site.scales = t.scales.As<float>();
  site.normalises_x = NormalisesX(read);
  site.x_du = read.x == X::kNone ? 0.0F : 1.0F;
  site.x_dx = read.base_norm ? 1.0F : 0.0F;
  site.x_kept = read.base_norm ? 0.0F : 1.0F;
  if (UsesXWeight(read)) site.x_weight = t.x_weight.As<float>();
  if (t.h) site.h = t.h.As<T>();
  if (UsesXWeight(read) || ((read.input_norm || t.h) && read.x != X::kNone)) site.x = t.x.As<T>();
  if (read.y) {
    site.y = t.y.As<T>();
    site.y_weight = t.y_weight.As<float>();
    site.dy = t.dy.As<T>();
    site.changes_dy = true;
  }
  if (read.input_norm) site.input_weight = t.input_weight.As<float>();
}

template <class T>
void SetWrite(const ResidualWrite& write, const ResidualBackwardTensors& t, BackwardSite<T>& site) {
  site.base_gain = write.base_gain;
  site.x_gain = write.x_gain;
  site.d_o = t.d_o.As<T>();
  if (write.y != Y::kKeep) {
    site.dy = t.dy.As<T>();
    site.p_dy = 1;
  }
  if (write.y == Y::kSet) {
    site.base_dy = 1;
    site.dy_kept = 0;
    site.changes_dy = true;
  }
  if (write.output_norm) {
    site.scales = t.scales.As<float>();
    site.o = t.o.As<T>();
    site.output_weight = t.output_weight.As<float>();
  }
}

// Gives a slot to each weight that the site has.
template <class T>
WeightGradients GiveSlots(const ResidualBackwardTensors& t, BackwardSite<T>& site) {
  WeightGradients sums = {.C = site.C, .pack = gpu::kPack<T>};
  const auto give = [&](const float* weight, Tensor gradient, int& slot) {
    if (weight == nullptr) return;
    slot = sums.slots++;
    sums.gradients[slot] = gradient.As<float>();
  };
  give(site.x_weight, t.dx_weight, site.x_slot);
  give(site.y_weight, t.dy_weight, site.y_slot);
  give(site.input_weight, t.dinput_weight, site.input_slot);
  give(site.output_weight, t.doutput_weight, site.output_slot);
  site.slots = sums.slots;
  return sums;
}

// Blocks that a multiprocessor has room for: registers (__launch_bounds__) for 768 threads of 8
// columns, or 512 of 16, and shared memory for their sums.
int64_t BlocksPerMultiprocessor(const gpu::RowSharing& sharing) {
  const int64_t threads = sharing.columns == 8 ? 768 : 512;
  return std::min<int64_t>(threads / sharing.threads, 8);
}

}  // namespace

void CudaOps::ResidualBackward(const ResidualSite& site, const ResidualBackwardTensors& t) const {
  CheckResidualBackward(site, t);
  if (t.dx.elements() == 0) return;
  WithActivationType(t.dx.dtype(), [&]<class T>(std::type_identity<T>) {
    BackwardSite<T> flat = {
        .N = static_cast<int>(t.dx.dim(0)), .C = static_cast<int>(t.dx.dim(1)), .dx = t.dx.As<T>()};
    if (site.read != nullptr) SetRead(*site.read, t, flat);
    if (site.write != nullptr) SetWrite(*site.write, t, flat);
    WeightGradients sums = GiveSlots(t, flat);
    const gpu::RowSharing sharing =
        gpu::ShareRows<T>(flat.C, {t.dx, t.dy, t.dh, t.x, t.y, t.x_weight, t.y_weight,
                                   t.input_weight, t.o, t.output_weight, t.d_o, t.h});
    flat.padded_width = static_cast<int>(sharing.padded_width);
    const int64_t rows_of_block = flat.slots + (sharing.columns == 0 ? 1 : 0);
    const int64_t bytes_of_block = ResidualBytes(rows_of_block, flat.padded_width);
    const int64_t blocks =
        std::min({int64_t{flat.N}, card_.multiprocessors * BlocksPerMultiprocessor(sharing),
                  std::max<int64_t>(workspace_.bytes / std::max<int64_t>(bytes_of_block, 1), 1)});
    flat.block_sums = workspace_.As<float>(blocks * bytes_of_block);
    flat.temporaries = flat.block_sums + blocks * flat.slots * flat.padded_width;
    const int64_t shared_floats =
        BlockSums::kFloats + (sharing.columns > 0 ? flat.slots * flat.padded_width : 0);
    gpu::WithColumns(sharing.columns, [&](auto kColumns) {
      gpu::Launch("ResidualBackward", ResidualBackwardKernel<T, kColumns()>,
                  {.blocks = static_cast<unsigned>(blocks),
                   .threads = sharing.threads,
                   .shared_bytes = shared_floats * int64_t{sizeof(float)}},
                  stream_, flat);
    });
    if (sums.slots == 0) return;
    sums.block_sums = flat.block_sums;
    sums.blocks = static_cast<int>(blocks);
    sums.padded_width = flat.padded_width;
    sums.threads = static_cast<int>(sharing.threads);
    const int fours = flat.padded_width / 4;
    const unsigned slices = std::clamp(std::bit_ceil(static_cast<unsigned>(blocks)), 4U,
                                       static_cast<unsigned>(kMaxSlices));
    gpu::Launch("AddBlockSums", AddBlockSumsKernel,
                {.blocks = dim3(static_cast<unsigned>(gpu::CeilingOfQuotient(fours, kFours)),
                                static_cast<unsigned>(sums.slots)),
                 .threads = kFours * slices,
                 .shared_bytes = int64_t{kFours} * slices * int64_t{sizeof(Pack<float>)}},
                stream_, sums);
  });
}

}  // namespace twinstream
