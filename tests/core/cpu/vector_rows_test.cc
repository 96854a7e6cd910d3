#include "core/cpu/vector_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows of every length up to a few vectors, between elements that nothing may change.
template <class T>
void CopiesRowsOfEveryLength() {
  constexpr int64_t kLongest = 3 * kVectorLanes + 1;
  for (int64_t count = 0; count <= kLongest; ++count) {
    std::vector<T> from(kLongest), to(kLongest + 2);
    for (int64_t i = 0; i < kLongest; ++i) from[i] = static_cast<float>(i + 1);
    for (T& element : to) element = -1.0F;
    Vector sum = {};
    ForVectors(count, [&](auto at) {
      const Vector stored = at.Store(2 * at.Load(from.data()), to.data() + 1);
      sum += stored;
    });
    EXPECT_EQ(SumOfLanes(sum), static_cast<float>(count * (count + 1)));
    for (int64_t i = 0; i < kLongest + 2; ++i) {
      const bool inside = 1 <= i && i <= count;
      EXPECT_EQ(to[i], inside ? 2 * static_cast<float>(i) : -1.0F) << i << " of " << count;
    }
  }
}

TEST(VectorRowsTest, RowsOfEveryLength) {
  CopiesRowsOfEveryLength<float>();
  CopiesRowsOfEveryLength<BFloat16>();
}

TEST(VectorRowsTest, LargestOfRowsOfEveryLength) {
  EXPECT_EQ(MaxOfRow(0, nullptr), -kInfinity);
  for (int64_t count = 1; count <= 3 * kVectorLanes + 1; ++count) {
    for (int64_t largest = 0; largest < count; ++largest) {
      std::vector<float> row(count, -3);
      row[largest] = -2;
      EXPECT_EQ(MaxOfRow(count, row.data()), -2) << largest << " of " << count;
    }
  }
}

TEST(VectorRowsTest, ALargestIsANumberIfThereIsOne) {
  constexpr int64_t kCount = kVectorLanes + 3;
  for (int64_t place = 0; place < kCount; ++place) {
    std::vector<float> row(kCount, -3);
    row[place] = NAN;
    EXPECT_EQ(MaxOfRow(kCount, row.data()), -3) << place;
  }
}

// Every upper half of a float32, with lower halves about the tie, and what a store returns.
TEST(VectorRowsTest, RoundsAsBFloat16DoesButForDenormalNumbers) {
  alignas(64) BFloat16 stored[kVectorLanes], streamed[kVectorLanes];
  for (uint32_t upper = 0; upper <= 0xFFFF; ++upper) {
    for (const uint32_t lower : {0x0000U, 0x0001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      const BFloat16 expected = RoundToBFloat16(value);
      const Vector returned = WholeVector{0}.Store(AllLanes(value), stored);
      WholeVector{0}.StoreNonTemporal(AllLanes(value), streamed);
      FenceNonTemporal();
      const WordVector pairs = RoundPairs(AllLanes(value), AllLanes(1));
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(float{stored[1]}) && std::isnan(float{streamed[1]}) &&
                    std::isnan(returned[1]));
        continue;
      }
      const bool denormal = value != 0 && !std::isnormal(value);
      if (denormal) {
        ASSERT_TRUE(stored[1].bits == expected.bits || float{stored[1]} == 0) << upper;
      } else {
        ASSERT_EQ(stored[1].bits, expected.bits) << value;
      }
      ASSERT_EQ(streamed[1].bits, stored[1].bits);
      ASSERT_EQ(returned[1], float{stored[1]});
      ASSERT_EQ(pairs[1], uint32_t{stored[1].bits} | 0x3F800000U) << value;
    }
  }
}

TEST(VectorRowsTest, PairsKeepTheirLanes) {
  Vector even, odd;
  for (int64_t i = 0; i < kVectorLanes; ++i) {
    even[i] = static_cast<float>(2 * i);
    odd[i] = static_cast<float>(2 * i + 1);
  }
  const WordVector pairs = RoundPairs(even, odd);
  for (int64_t i = 0; i < kVectorLanes; ++i) {
    EXPECT_EQ(pairs[i] & 0xFFFF, RoundToBFloat16(even[i]).bits);
    EXPECT_EQ(pairs[i] >> 16, RoundToBFloat16(odd[i]).bits);
  }
}

}  // namespace
}  // namespace twinstream::TWINSTREAM_CPU_ISA
