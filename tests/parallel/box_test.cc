#include "parallel/box.h"

#include <vector>

#include "gtest/gtest.h"

namespace twinstream {
namespace {

bool Contains(const Box& box, int64_t row, int64_t column) {
  return row >= box.begin[0] && row < box.begin[0] + box.extent[0] && column >= box.begin[1] &&
         column < box.begin[1] + box.extent[1];
}

TEST(BoxTest, WholeCoversEveryElementAndRangeOneSliceOfThem) {
  const Shape global{6, 4};
  EXPECT_EQ(Box::Whole(global), (Box{{0, 0}, {6, 4}}));
  EXPECT_EQ(Box::Range(global, 0, 2, 5), (Box{{2, 0}, {3, 4}}));
  EXPECT_EQ(Box::Range(global, 1, 1, 1), (Box{{0, 1}, {6, 0}}));
  EXPECT_EQ(Box::Range(global, 1, 1, 3).elements(), 12);
  EXPECT_EQ(Box::Whole(Shape{}).elements(), 1) << "a scalar has one element";
}

TEST(BoxTest, TextShowsHalfOpenRangesOfTheGlobalTensor) {
  EXPECT_EQ(Box::Range({64, 32}, 0, 16, 32).ToString(), "[16:32, 0:32]");
  EXPECT_EQ(Box::Whole(Shape{}).ToString(), "[]");
}

TEST(BoxTest, IntersectionHoldsExactlyTheElementsOfBoth) {
  std::vector<Box> boxes;
  for (int64_t row : {0, 1, 3}) {
    for (int64_t column : {0, 2}) {
      for (int64_t rows : {0, 1, 3}) {
        for (int64_t columns : {1, 4}) boxes.push_back({{row, column}, {rows, columns}});
      }
    }
  }
  for (const Box& a : boxes) {
    for (const Box& b : boxes) {
      const Box common = Intersect(a, b);
      int64_t elements = 0;
      for (int64_t row = 0; row < 8; ++row) {
        for (int64_t column = 0; column < 8; ++column) {
          const bool in_both = Contains(a, row, column) && Contains(b, row, column);
          EXPECT_EQ(Contains(common, row, column), in_both) << a.ToString() << b.ToString();
          elements += in_both ? 1 : 0;
        }
      }
      EXPECT_EQ(common.elements(), elements) << a.ToString() << b.ToString();
    }
  }
}

TEST(BoxTest, CopyMovesExactlyTheCommonElements) {
  const Shape global{4, 3, 5};
  std::vector<Box> boxes = {Box::Whole(global)};
  for (int d = 0; d < 3; ++d) {
    boxes.push_back(Box::Range(global, d, 0, 2));
    boxes.push_back(Box::Range(global, d, 1, 3));
  }
  boxes.push_back({{1, 1, 1}, {2, 2, 3}});
  // Element (i, j, k) holds its own index 1 + 100 i + 10 j + k.
  const auto fill = [](const Box& box, bool filled) {
    std::vector<int32_t> values;
    for (int64_t i = box.begin[0]; i < box.begin[0] + box.extent[0]; ++i) {
      for (int64_t j = box.begin[1]; j < box.begin[1] + box.extent[1]; ++j) {
        for (int64_t k = box.begin[2]; k < box.begin[2] + box.extent[2]; ++k) {
          values.push_back(filled ? static_cast<int32_t>(1 + 100 * i + 10 * j + k) : 0);
        }
      }
    }
    return values;
  };
  for (const Box& from : boxes) {
    for (const Box& to : boxes) {
      const Box common = Intersect(from, to);
      const std::vector<int32_t> source = fill(from, true), expected = fill(to, true);
      std::vector<int32_t> target = fill(to, false);
      CopyBox(common, from, reinterpret_cast<const std::byte*>(source.data()), to,
              reinterpret_cast<std::byte*>(target.data()), sizeof(int32_t));
      int64_t copied = 0;
      for (size_t n = 0; n < target.size(); ++n) {
        EXPECT_TRUE(target[n] == 0 || target[n] == expected[n]) << from.ToString() << to.ToString();
        copied += target[n] != 0 ? 1 : 0;
      }
      EXPECT_EQ(copied, common.elements()) << from.ToString() << to.ToString();
    }
  }
}

TEST(BoxTest, EvenSplitCoversAllWithSizesThatDifferByAtMostOneLargerFirst) {
  for (int64_t n = 0; n <= 20; ++n) {
    for (int64_t parts = 1; parts <= 7; ++parts) {
      int64_t next = 0;
      int64_t size_before = n;
      for (int64_t i = 0; i < parts; ++i) {
        const Range range = SplitEvenly(n, parts, i);
        EXPECT_EQ(range.begin, next);
        EXPECT_LE(range.size(), size_before);
        EXPECT_TRUE(range.size() == n / parts || range.size() == n / parts + 1);
        size_before = range.size();
        next = range.end;
      }
      EXPECT_EQ(next, n);
    }
  }
}

}  // namespace
}  // namespace twinstream
