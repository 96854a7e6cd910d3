// Products of warpgroups as the CPU emulates them: they are those of the matrices, for both ways in
// which an operand may lie in shared memory, and every fault that the emulation is there to find is
// planted once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/cuda/panels.h"
#include "core/cuda/tiles.h"
#include "gpu/primitives.h"
#include "gpu/warpgroup.h"
#include "tests/testing/near.h"
#include "tests/testing/vectors.h"

namespace twinstream::gpu {
namespace {

using twinstream::testing::Float32Tolerance;
using twinstream::testing::RandomFloats;
using twinstream::testing::RelativeError;

constexpr int kSum = 128, kSteps = kSum / 16;

enum class Fault {
  kNone,
  kNoBarrier,
  kNoFence,
  kFenceOfOtherRegisters,
  kNoSharedFence,
  kSharedFenceAfterBarrier,
  kReadBeforeWait,
  kWriteBeforeWait,
  kLeftChangedBeforeWait,
  kLeftTileOverwrittenBeforeWait,
  kTileOverwrittenBeforeWait,
  kWaitLeavesOne,
  kNeverAwaited,
  kOneLaneDiffers,
  kOneWarpDiffers,
  kOneWarpMissing,
  kUnpermuted,
  kOtherSwizzle,
  kOffAtoms,
  kOtherLeading,
  kOtherStride,
  kBehindMemory,
};

// a: [64 groups, kSum]; b: [kSum, kN], for kK its transpose; d: [64 groups, kN] of so many
// warpgroups.
struct Matrices {
  const BFloat16 *a, *b;
  float* d;
};

template <int kN, Major kMajor>
using Tiles = std::conditional_t<kMajor == Major::kK, Panels<kN, kSum>, Panels<kSum, kN>>;

template <Major kMajor, int kRows, int kColumns>
MatrixInShared<kMajor> Faulty(MatrixInShared<kMajor> operand, const Panels<kRows, kColumns>& tile,
                              Fault fault) {
  constexpr uint64_t kSixteenBytes = 1, kLeading = uint64_t{1} << 16, kStride = uint64_t{1} << 32;
  switch (fault) {
    case Fault::kOtherSwizzle:
      operand.descriptor ^= uint64_t{3} << 62;
      break;
    case Fault::kOffAtoms:
      operand.descriptor += 8 * kSixteenBytes;
      break;
    case Fault::kOtherLeading:  // the same panel again
      operand.descriptor -= tile.kPanelBytes / 16 * kLeading;
      break;
    case Fault::kOtherStride:  // every second atom
      operand.descriptor += 1024 / 16 * kStride;
      break;
    case Fault::kBehindMemory:
      operand.descriptor += BlockSharedBytes() / 16 * kSixteenBytes;
      break;
    case Fault::kOneLaneDiffers:
      operand.descriptor += ThisThread() == 37 ? 1024 / 16 : 0;
      break;
    case Fault::kOneWarpDiffers:
      operand.descriptor += ThisWarp() == 2 ? 1024 / 16 : 0;
      break;
    default:
      break;
  }
  return operand;
}

template <int kN, Major kMajor>
MatrixInShared<kMajor> Right(const Tiles<kN, kMajor>& tile, int step) {
  if constexpr (kMajor == Major::kK) {
    return tile.Transpose(step);
  } else {
    return tile.Rows(step);
  }
}

template <int kN>
void WriteSums(const float (&sums)[kN / 8][4], float* d) {
  const int g = ThisLane() / 4, p = ThisLane() % 4;
  for (int n = 0; n < kN / 8; ++n) {
    for (int i = 0; i < 4; ++i) {
      d[(ThisWarp() * 16 + g + 8 * (i / 2)) * kN + 8 * n + 2 * p + i % 2] = sums[n][i];
    }
  }
}

void LoadLeft(uint32_t (&left)[kSteps][4], const BFloat16* a) {
  const int g = ThisLane() / 4, p = ThisLane() % 4;
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < 4; ++i) {
      const BFloat16* const pair =
          a + (ThisWarp() * 16 + g + 8 * (i % 2)) * kSum + 16 * step + 2 * p + 8 * (i / 2);
      left[step][i] = PackBFloat16(static_cast<float>(pair[0]), static_cast<float>(pair[1]));
    }
  }
}

// The tile, for the products to read.
template <int kN, Major kMajor>
void FillTile(const Tiles<kN, kMajor>& tile, const BFloat16* b, Fault fault) {
  constexpr int kRows = kMajor == Major::kK ? kN : kSum, kColumns = kMajor == Major::kK ? kSum : kN;
  CopyRows<kRows, kColumns, kWarpgroupThreads>(tile, {b, kColumns}, 0, kRows, kColumns);
  CommitCopies();
  WaitForCopies<0>();
  if (fault == Fault::kUnpermuted) {
    SyncBlock();
    const int row = ThisThread();
    for (int chunk = 0; chunk < 8; ++chunk) {
      std::copy_n(b + row * kColumns + chunk * 8, 8, tile.data + row * 64 + chunk * 8);
    }
  }
  if (fault != Fault::kNoSharedFence && fault != Fault::kSharedFenceAfterBarrier) FenceShared();
  if (fault != Fault::kNoBarrier) SyncBlock();
  if (fault == Fault::kSharedFenceAfterBarrier) FenceShared();
}

// d = a b, by two groups of products; of all warpgroups with the same b.
template <int kN, Major kMajor>
void Multiply(Matrices m, Fault fault) {
  const Tiles<kN, kMajor> tile{SharedMemory<BFloat16>()};
  if (ThisThread() < kWarpgroupThreads) {
    FillTile<kN, kMajor>(tile, m.b, fault);
  } else {
    SyncBlock();
  }
  uint32_t left[kSteps][4];
  LoadLeft(left, m.a);
  float sums[kN / 8][4];  // the first product overwrites them
  if (fault == Fault::kFenceOfOtherRegisters) {
    FenceProducts(sums);
  } else if (fault != Fault::kNoFence) {
    FenceProducts(sums, left);
  }
  for (int step = 0; step < kSteps; ++step) {
    if (fault == Fault::kOneWarpMissing && ThisWarp() == 1 && step == kSteps - 1) continue;
    AddProduct(sums, left[step], Faulty(Right<kN, kMajor>(tile, step), tile, fault), step > 0);
    if (step == 2) CommitProducts();
  }
  CommitProducts();
  if (fault == Fault::kReadBeforeWait) WriteSums<kN>(sums, m.d);
  if (fault == Fault::kWriteBeforeWait) sums[1][2] = 0;
  if (fault == Fault::kLeftChangedBeforeWait) left[5][1] ^= 1;
  if (fault == Fault::kTileOverwrittenBeforeWait) tile.At(9, 2, 1)[3] = BFloat16(64);
  if (fault == Fault::kNeverAwaited) return;
  if (fault == Fault::kWaitLeavesOne) {
    WaitForProducts<1>(sums);
  } else {
    WaitForProducts<1>();
    WaitForProducts<0>(sums);
  }
  if (fault != Fault::kReadBeforeWait) WriteSums<kN>(sums, m.d);
}

// The same, the left operand in shared memory too: faults of descriptors are its.
template <int kN, Major kMajor>
void MultiplyInShared(Matrices m, Fault fault) {
  constexpr int kLeftRows = 128;
  const Tiles<kN, kMajor> tile{SharedMemory<BFloat16>()};
  const Panels<kLeftRows, kSum> left{tile.data + kN * kSum};
  if (ThisThread() < kWarpgroupThreads) {
    CopyRows<kLeftRows, kSum, kWarpgroupThreads>(left, {m.a, kSum}, 0,
                                                 static_cast<int>(blockDim.x) / 2, kSum);
    FillTile<kN, kMajor>(tile, m.b, fault);
  } else {
    SyncBlock();
  }
  float sums[kN / 8][4];
  FenceProducts(sums);
  for (int step = 0; step < kSteps; ++step) {
    const int first_row = ThisThread() / kWarpgroupThreads * 64;
    AddProduct(sums, Faulty(left.LeftRows(first_row, step), left, fault),
               Right<kN, kMajor>(tile, step), step > 0);
  }
  CommitProducts();
  if (fault == Fault::kLeftTileOverwrittenBeforeWait) left.At(9, 2, 1)[3] = BFloat16(64);
  WaitForProducts<0>(sums);
  WriteSums<kN>(sums, m.d);
}

// The error of d.
template <int kN, Major kMajor>
double ErrorOf(Fault fault, int warpgroups = 1,
               void (*multiply)(Matrices, Fault) = Multiply<kN, kMajor>) {
  const int rows = 64 * warpgroups;
  const std::vector<float> a = RandomFloats(rows * kSum, 1, DType::kBF16);
  const std::vector<float> b = RandomFloats(kSum * kN, 2, DType::kBF16);  // as it lies there
  const std::vector<BFloat16> rounded_a(a.begin(), a.end());
  std::vector<BFloat16> rounded_b(b.begin(), b.end());
  std::vector<float> d(static_cast<size_t>(rows * kN), 0);
  std::vector<double> expected(d.size());
  for (int i = 0; i < rows; ++i) {
    for (int n = 0; n < kN; ++n) {
      for (int k = 0; k < kSum; ++k) {
        const int place = kMajor == Major::kK ? n * kSum + k : k * kN + n;
        expected[static_cast<size_t>(i * kN + n)] +=
            static_cast<double>(a[static_cast<size_t>(i * kSum + k)]) *
            b[static_cast<size_t>(place)];
      }
    }
  }
  const bool left_in_shared = multiply != Multiply<kN, kMajor>;
  Launch("faulty", multiply,
         {.blocks = 1,
          .threads = static_cast<unsigned>(warpgroups * kWarpgroupThreads),
          .shared_bytes =
              Tiles<kN, kMajor>::kBytes + (left_in_shared ? Panels<128, kSum>::kBytes : 0)},
         Stream(), Matrices{rounded_a.data(), rounded_b.data(), d.data()}, fault);
  return RelativeError(d, expected);
}
template <Major kMajor>
double ErrorInShared(Fault fault, int warpgroups = 1) {
  return ErrorOf<64, kMajor>(fault, warpgroups, MultiplyInShared<64, kMajor>);
}

template <int kN, Major kMajor>
void ExpectProducts() {
  for (const int warpgroups : {1, 2}) {
    EXPECT_LE((ErrorOf<kN, kMajor>(Fault::kNone, warpgroups)), Float32Tolerance(kSum));
  }
}

TEST(CudaWarpgroups, ProductsAreThoseOfTheirMatrices) {
  ExpectProducts<64, Major::kK>();
  ExpectProducts<128, Major::kK>();
  ExpectProducts<64, Major::kMN>();
  ExpectProducts<128, Major::kMN>();
}

TEST(CudaWarpgroups, SoAreThoseOfLeftOperandsInSharedMemory) {
  for (const int warpgroups : {1, 2}) {
    EXPECT_LE(ErrorInShared<Major::kK>(Fault::kNone, warpgroups), Float32Tolerance(kSum));
    EXPECT_LE(ErrorInShared<Major::kMN>(Fault::kNone, warpgroups), Float32Tolerance(kSum));
  }
}

// NaN is no less than anything.
void ExpectWrong(Fault fault) {
  EXPECT_FALSE((ErrorOf<128, Major::kK>(fault) < 1e-3)) << static_cast<int>(fault);
  EXPECT_FALSE((ErrorOf<128, Major::kMN>(fault) < 1e-3)) << static_cast<int>(fault);
}

TEST(CudaWarpgroups, EarlyAccessesAndWrongPlacesGiveWrongResults) {
  for (const Fault fault :
       {Fault::kReadBeforeWait, Fault::kTileOverwrittenBeforeWait, Fault::kUnpermuted}) {
    ExpectWrong(fault);
  }
  EXPECT_GT((ErrorOf<128, Major::kMN>(Fault::kOtherLeading)), 1e-3);
  EXPECT_FALSE(ErrorInShared<Major::kK>(Fault::kLeftTileOverwrittenBeforeWait) < 1e-3);
  EXPECT_GT(ErrorInShared<Major::kK>(Fault::kOtherStride), 1e-3);
}

// As the warps happen to advance.
TEST(CudaWarpgroups, AMissingBarrierGivesWrongResults) {
  int wrong = 0;
  for (int launch = 0; launch < 40; ++launch) {
    wrong += ErrorOf<128, Major::kMN>(Fault::kNoBarrier) < 1e-3 ? 0 : 1;
  }
  EXPECT_GT(wrong, 5);
}

void ExpectDeath(Fault fault, const char* message) {
  EXPECT_DEATH((ErrorOf<128, Major::kK>(fault)), message);
  EXPECT_DEATH((ErrorOf<128, Major::kMN>(fault)), message);
}

TEST(CudaWarpgroupsDeathTest, AFaultOfRegistersIsFound) {
  ExpectDeath(Fault::kNoFence, "faulty: a product of registers without a fence");
  ExpectDeath(Fault::kFenceOfOtherRegisters, "faulty: a product of registers without a fence");
  ExpectDeath(Fault::kWriteBeforeWait, "the result of a product was written before the wait");
  ExpectDeath(Fault::kLeftChangedBeforeWait, "the left operand of a product changed before");
  ExpectDeath(Fault::kWaitLeavesOne, "a wait that leaves its registers' products under way");
  ExpectDeath(Fault::kNeverAwaited, "thread 0 returned without waiting for its products");
}

TEST(CudaWarpgroupsDeathTest, CopiesWithoutAFenceBeforeTheBarrierAreFound) {
  ExpectDeath(Fault::kNoSharedFence, "before which thread [0-9]+ has not fenced its copies");
  ExpectDeath(Fault::kSharedFenceAfterBarrier, "before which thread [0-9]+ has not fenced");
}

TEST(CudaWarpgroupsDeathTest, ThreadsThatIssueDifferentProductsAreFound) {
  ExpectDeath(Fault::kOneLaneDiffers, "lanes 0 and 5 of warp 1 have issued different products");
  ExpectDeath(Fault::kOneWarpDiffers, "the warps of warpgroup 0 have issued different products");
  ExpectDeath(Fault::kOneWarpMissing, "the warps of warpgroup 0 have issued different products");
  const auto half = +[] {
    float sums[8][4];
    FenceProducts(sums);
  };
  EXPECT_DEATH(Launch("faulty", half, {.blocks = 1, .threads = 64}, Stream()),
               "products of warpgroups in a block of 64 threads");
}

TEST(CudaWarpgroupsDeathTest, AFaultyDescriptorIsFound) {
  ExpectDeath(Fault::kOtherSwizzle, "with swizzle 2: it is not on its atoms");
  ExpectDeath(Fault::kOffAtoms, "it is not on its atoms");
  ExpectDeath(Fault::kOtherStride, "a product reads shared memory at [0-9]+, of which the block");
  ExpectDeath(Fault::kBehindMemory, "a product reads shared memory at [0-9]+, of which the block");
}

TEST(CudaWarpgroupsDeathTest, SoIsOneOfALeftOperand) {
  const auto expect_death = [](Fault fault, const char* message) {
    EXPECT_DEATH(ErrorInShared<Major::kK>(fault), message);
  };
  expect_death(Fault::kOtherSwizzle, "with swizzle 2: it is not on its atoms");
  expect_death(Fault::kOffAtoms, "it is not on its atoms");
  expect_death(Fault::kBehindMemory, "a product reads shared memory at [0-9]+, of which the block");
  expect_death(Fault::kOneLaneDiffers, "lanes 0 and 5 of warp 1 have issued different products");
  expect_death(Fault::kOneWarpDiffers, "the warps of warpgroup 0 have issued different products");
}

}  // namespace
}  // namespace twinstream::gpu
