#include "core/cuda/emulated/gpu/pending_products.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <vector>

#include "core/check.h"
#include "core/cuda/emulated/runtime.h"
#include "gpu/emulator.h"
#include "gpu/primitives.h"

namespace twinstream::gpu {
namespace {

constexpr int kSum = 16, kWarpRows = 16, kWarpsOfGroup = 4, kGroupRows = 64;
constexpr uint32_t kAtomBytes = 1024, kRowBytes = 128, kChunkBytes = 16;
constexpr uint32_t kFirstAddress = 1024;  // of a block's own shared memory: a card keeps some
constexpr size_t kMostColumns = 128;

// What a MatrixInShared says.
struct Operand {
  explicit Operand(uint64_t descriptor)
      : address(Bits(descriptor, 0, 14) << 4),
        leading(Bits(descriptor, 16, 14) << 4),
        stride(Bits(descriptor, 32, 14) << 4),
        row_in_atom(Bits(descriptor, 49, 3)),
        swizzle(Bits(descriptor, 62, 2)) {}
  static uint32_t Bits(uint64_t from, int first, int count) {
    return static_cast<uint32_t>(from >> first & ((uint64_t{1} << count) - 1));
  }
  uint32_t address, leading, stride, row_in_atom, swizzle;
};

struct Registers {
  const std::byte* begin;
  size_t bytes;

  bool Overlap(const void* other, size_t other_bytes) const {
    const auto* first = static_cast<const std::byte*>(other);
    return begin < first + other_bytes && first < begin + bytes;
  }
  bool Hold(const void* other, size_t other_bytes) const {
    const auto* first = static_cast<const std::byte*>(other);
    return begin <= first && first + other_bytes <= begin + bytes;
  }
};

// What d will be: `products` of it are under way.
struct Accumulator {
  float* d;
  std::vector<float> values;
  int products;

  Registers registers() const {
    return {reinterpret_cast<const std::byte*>(d), values.size() * sizeof(float)};
  }
};

struct PendingProduct {
  IssuedProduct issued;
  std::array<uint32_t, 4> a;  // when it was issued
};

struct Thread {
  std::vector<Registers> fenced;
  std::vector<Accumulator> accumulators;
  std::deque<std::vector<PendingProduct>> groups = {{}};  // the last one is not committed yet
  int groups_left = 0;                                    // that it waits for
  int64_t waits = 0;
};

struct Warp {
  int64_t waits = 0;
  size_t products = 0;  // done so far
};

// What all threads of a warpgroup have in common of a product.
struct Shared {
  uint64_t a, b;
  int column_tiles;
  Major major;
  bool accumulate;

  static Shared Of(const IssuedProduct& p) {
    return {p.a_in_shared, p.b, p.column_tiles, p.major, p.accumulate};
  }
  bool operator==(const Shared&) const = default;
};

struct BlockProducts {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<std::vector<Shared>> groups;  // of each warpgroup: what its first warp has done
  bool used = false;                        // by this block
};

BlockProducts& ThisBlock() {
  thread_local BlockProducts block;
  return block;
}
Thread& ThisThreadsProducts() {
  BlockProducts& block = ThisBlock();
  if (!block.used) {
    const EmulatedHost& host = TheHost();
    Check(host.capability_major == 9 && host.capability_minor == 0,
          "kernel %s: products of warpgroups on a card of compute capability %d.%d",
          KernelOfBlock(), host.capability_major, host.capability_minor);
    Check(ThreadsOfBlock() % (kWarpsOfGroup * kWarpLanes) == 0,
          "kernel %s: products of warpgroups in a block of %d threads", KernelOfBlock(),
          ThreadsOfBlock());
    const auto threads = static_cast<size_t>(ThreadsOfBlock());
    block.threads.assign(threads, {});
    block.warps.assign(threads / kWarpLanes, {});
    block.groups.assign(threads / kWarpLanes / kWarpsOfGroup, {});
    block.used = true;
  }
  return block.threads[static_cast<size_t>(ThreadOfBlock())];
}

void CheckOperand(const Operand& b, Major major, int columns) {
  const uint32_t step = major == Major::kK ? 2 * kChunkBytes : kRowBytes;
  Check(b.swizzle == 1 && b.row_in_atom == 0 && b.stride % kAtomBytes == 0 &&
            b.address % kAtomBytes % step == 0 && b.address % kAtomBytes < kRowBytes &&
            (major == Major::kK || columns <= 64 || b.leading % kAtomBytes == 0),
        "kernel %s: a product of a matrix in shared memory at %d, off %d, %d bytes to the next "
        "panel, %d to the next atom, with swizzle %d: it is not on its atoms",
        KernelOfBlock(), b.address, b.row_in_atom, b.leading, b.stride, b.swizzle);
}

// Eight bf16 from an address before its permutation.
void LoadChunk(uint32_t address, float* to, size_t step) {
  const uint32_t place = address ^ (address / kRowBytes % 8) * kChunkBytes;
  Check(kFirstAddress <= place &&
            place - kFirstAddress + kChunkBytes <= static_cast<uint64_t>(BlockSharedBytes()),
        "kernel %s: a product reads shared memory at %d, of which the block has %d bytes",
        KernelOfBlock(), int64_t{place} - kFirstAddress, BlockSharedBytes());
  uint32_t words[4];
  std::memcpy(words, BlockSharedMemory() + (place - kFirstAddress), sizeof(words));
  for (size_t i = 0; i < 4; ++i) {
    to[2 * i * step] = LowOf(words[i]);
    to[(2 * i + 1) * step] = HighOf(words[i]);
  }
}

// [kSum, ..], or of a left operand the transpose.
using Values = std::array<std::array<float, kMostColumns>, kSum>;

// Columns first .. first + columns - 1.
void Load(Values& values, const Operand& from, Major major, uint32_t first, uint32_t columns) {
  if (major == Major::kK) {
    for (uint32_t i = 0; i < columns; ++i) {
      const uint32_t n = first + i, row = from.address + n / 8 * from.stride + n % 8 * kRowBytes;
      LoadChunk(row, &values[0][i], kMostColumns);
      LoadChunk(row + kChunkBytes, &values[8][i], kMostColumns);
    }
  } else {
    for (uint32_t k = 0; k < kSum; ++k) {
      const uint32_t row = from.address + k / 8 * from.stride + k % 8 * kRowBytes;
      for (uint32_t i = 0; i < columns; i += 8) {
        const uint32_t n = first + i;
        LoadChunk(row + n / 64 * from.leading + n % 64 / 8 * kChunkBytes, &values[k][i], 1);
      }
    }
  }
}

// One product of a warp: the i-th of the oldest group of all its lanes.
class WarpProduct {
 public:
  WarpProduct(Thread* lanes, size_t i, size_t warp) : lanes_(lanes), i_(i), warp_(warp) {}
  const PendingProduct& Of(size_t lane) const { return lanes_[lane].groups.front()[i_]; }

  void Perform() const {
    const IssuedProduct& product = Of(0).issued;
    const auto columns = static_cast<uint32_t>(product.column_tiles) * 8;
    Values left, right;
    LoadLeft(left);
    Load(right, Operand(product.b), product.major, 0, columns);
    for (size_t row = 0; row < kWarpRows; ++row) {
      std::array<float, kMostColumns> sums = {};
      for (size_t k = 0; k < kSum; ++k) {
        for (size_t n = 0; n < columns; ++n) sums[n] += left[k][row] * right[k][n];
      }
      for (size_t n = 0; n < columns; ++n) {
        const size_t lane = row % 8 * 4 + n % 8 / 2;
        float& value = AccumulatorOf(lane).values[n / 8 * 4 + row / 8 * 2 + n % 2];
        value = (product.accumulate ? value : 0) + sums[n];
      }
    }
    for (size_t lane = 0; lane < kWarpLanes; ++lane) Finish(lane);
  }

 private:
  // The warp's rows.
  void LoadLeft(Values& left) const {
    const IssuedProduct& product = Of(0).issued;
    if (product.a == nullptr) {
      const auto first = static_cast<uint32_t>(warp_ % kWarpsOfGroup * kWarpRows);
      return Load(left, Operand(product.a_in_shared), Major::kK, first, kWarpRows);
    }
    for (size_t row = 0; row < kWarpRows; ++row) {
      for (size_t k = 0; k < kSum; ++k) {
        // Holder 4 g + p has of rows g and g + 8 columns 2 p, 2 p + 1 and those 8 further on.
        const uint32_t pair = Of(row % 8 * 4 + k % 8 / 2).a[row / 8 + k / 8 * 2];
        left[k][row] = k % 2 == 0 ? LowOf(pair) : HighOf(pair);
      }
    }
  }
  Accumulator& AccumulatorOf(size_t lane) const {
    return *std::find_if(lanes_[lane].accumulators.begin(), lanes_[lane].accumulators.end(),
                         [&](const Accumulator& a) { return a.d == Of(lane).issued.d; });
  }
  void Finish(size_t lane) const {
    const PendingProduct& product = Of(lane);
    Check(product.issued.a == nullptr ||
              std::equal(product.a.begin(), product.a.end(), product.issued.a),
          "kernel %s: the left operand of a product changed before the wait for it",
          KernelOfBlock());
    Accumulator& accumulator = AccumulatorOf(lane);
    const Registers d = accumulator.registers();
    Check(std::all_of(d.begin, d.begin + d.bytes, [](std::byte b) { return b == kUnwritten; }),
          "kernel %s: the result of a product was written before the wait for it", KernelOfBlock());
    if (--accumulator.products > 0) return;
    std::memcpy(accumulator.d, accumulator.values.data(), d.bytes);
    lanes_[lane].accumulators.erase(lanes_[lane].accumulators.begin() +
                                    (&accumulator - lanes_[lane].accumulators.data()));
  }

  Thread* lanes_;
  size_t i_, warp_;
};

// All lanes wait for the same, and have issued the same, as the other warps of the warpgroup have.
void CheckAgreement(const Thread* lanes, size_t warp) {
  for (size_t lane = 1; lane < kWarpLanes; ++lane) {
    bool same = lanes[lane].waits == lanes[0].waits &&
                lanes[lane].groups_left == lanes[0].groups_left &&
                lanes[lane].groups.size() == lanes[0].groups.size();
    for (size_t g = 0; same && g < lanes[0].groups.size(); ++g) {
      same = std::equal(lanes[lane].groups[g].begin(), lanes[lane].groups[g].end(),
                        lanes[0].groups[g].begin(), lanes[0].groups[g].end(),
                        [](const PendingProduct& a, const PendingProduct& b) {
                          return Shared::Of(a.issued) == Shared::Of(b.issued);
                        });
    }
    Check(same, "kernel %s: lanes 0 and %d of warp %d have issued different products",
          KernelOfBlock(), lane, warp);
  }
}

void CheckAgreement(const IssuedProduct& product, size_t warp) {
  BlockProducts& block = ThisBlock();
  std::vector<Shared>& of_group = block.groups[warp / kWarpsOfGroup];
  const size_t number = block.warps[warp].products++;
  if (number == of_group.size()) of_group.push_back(Shared::Of(product));
  Check(of_group[number] == Shared::Of(product),
        "kernel %s: the warps of warpgroup %d have issued different products", KernelOfBlock(),
        warp / kWarpsOfGroup);
}

}  // namespace

uint32_t AddressInShared(const void* shared) {
  return kFirstAddress +
         static_cast<uint32_t>(static_cast<const std::byte*>(shared) - BlockSharedMemory());
}

void LetProductsUse(const void* registers, size_t bytes) {
  ThisThreadsProducts().fenced.push_back({static_cast<const std::byte*>(registers), bytes});
}

void IssueProduct(const IssuedProduct& product) {
  Thread& thread = ThisThreadsProducts();
  const size_t count = static_cast<size_t>(product.column_tiles) * 4, bytes = count * sizeof(float);
  const auto fenced = [&](const void* registers, size_t size) {
    return std::any_of(thread.fenced.begin(), thread.fenced.end(),
                       [&](const Registers& r) { return r.Hold(registers, size); });
  };
  Check(
      fenced(product.d, bytes) && (product.a == nullptr || fenced(product.a, 4 * sizeof(uint32_t))),
      "kernel %s: a product of registers without a fence since the last wait", KernelOfBlock());
  Check(UnfencedCopier() < 0,
        "kernel %s: a product after a barrier before which thread %d has not fenced its copies",
        KernelOfBlock(), UnfencedCopier());
  CheckOperand(Operand(product.b), product.major, product.column_tiles * 8);
  PendingProduct pending = {product, {}};
  if (product.a == nullptr) {
    CheckOperand(Operand(product.a_in_shared), Major::kK, kGroupRows);
  } else {
    std::copy_n(product.a, 4, pending.a.begin());
  }
  thread.groups.back().push_back(pending);
  for (Accumulator& accumulator : thread.accumulators) {
    if (accumulator.d != product.d) continue;
    ++accumulator.products;
    return;
  }
  thread.accumulators.push_back({product.d, {product.d, product.d + count}, 1});
  std::memset(product.d, std::to_integer<int>(kUnwritten), bytes);
}

void CommitPendingProducts() { ThisThreadsProducts().groups.emplace_back(); }

void WaitForPendingProducts(int groups_left) {
  Thread& thread = ThisThreadsProducts();
  thread.fenced.clear();
  thread.groups_left = groups_left;
  ++thread.waits;
  MeetWarp(Meeting::kProductWait);
  const auto warp = static_cast<size_t>(ThreadOfBlock() / kWarpLanes);
  Warp& state = ThisBlock().warps[warp];
  if (state.waits == thread.waits) return;  // another lane has done them
  state.waits = thread.waits;
  Thread* const lanes = &ThisBlock().threads[warp * kWarpLanes];
  CheckAgreement(lanes, warp);
  while (static_cast<int>(lanes[0].groups.size()) - 1 > groups_left) {
    for (size_t i = 0; i < lanes[0].groups.front().size(); ++i) {
      const WarpProduct product(lanes, i, warp);
      CheckAgreement(product.Of(0).issued, warp);
      product.Perform();
    }
    for (size_t lane = 0; lane < kWarpLanes; ++lane) lanes[lane].groups.pop_front();
  }
}

void CheckNotPending(const void* registers, size_t bytes) {
  for (const Accumulator& accumulator : ThisThreadsProducts().accumulators) {
    Check(!accumulator.registers().Overlap(registers, bytes),
          "kernel %s: a wait that leaves its registers' products under way", KernelOfBlock());
  }
}

void BeginPendingProducts() { ThisBlock().used = false; }

void CheckNoPendingProducts() {
  BlockProducts& block = ThisBlock();
  if (!block.used) return;
  for (size_t i = 0; i < block.threads.size(); ++i) {
    Check(block.threads[i].accumulators.empty(),
          "kernel %s: thread %d returned without waiting for its products", KernelOfBlock(), i);
  }
  for (size_t warp = 0; warp < block.warps.size(); ++warp) {
    Check(block.warps[warp].products == block.groups[warp / kWarpsOfGroup].size(),
          "kernel %s: the warps of warpgroup %d have issued different products", KernelOfBlock(),
          warp / kWarpsOfGroup);
  }
}

}  // namespace twinstream::gpu
