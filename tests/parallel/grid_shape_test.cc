#include "parallel/grid_shape.h"

#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace twinstream {
namespace {

using ::testing::ElementsAre;

constexpr Axis kAxes[] = {Axis::kTensor, Axis::kContext, Axis::kData, Axis::kPipeline};

std::vector<GridShape> AllShapes() {
  std::vector<GridShape> shapes;
  for (int tensor : {1, 2, 3}) {
    for (int context : {1, 2}) {
      for (int data : {1, 2, 5}) {
        for (int pipeline : {1, 3, 4}) shapes.push_back({tensor, context, data, pipeline});
      }
    }
  }
  return shapes;
}

TEST(GridShape, TensorVariesFastestAndPipelineSlowest) {
  const GridShape shape = {.tensor = 2, .context = 2, .data = 3, .pipeline = 2};
  int rank = 0;
  for (int pipeline = 0; pipeline < 2; ++pipeline) {
    for (int data = 0; data < 3; ++data) {
      for (int context = 0; context < 2; ++context) {
        for (int tensor = 0; tensor < 2; ++tensor) {
          const GridCoordinates at = shape.At(rank++);
          EXPECT_EQ(at.tensor, tensor);
          EXPECT_EQ(at.context, context);
          EXPECT_EQ(at.data, data);
          EXPECT_EQ(at.pipeline, pipeline);
        }
      }
    }
  }
  EXPECT_EQ(rank, shape.ranks());
}

TEST(GridShape, RankOfInvertsAt) {
  for (const GridShape& shape : AllShapes()) {
    for (int rank = 0; rank < shape.ranks(); ++rank) {
      EXPECT_EQ(shape.RankOf(shape.At(rank)), rank) << shape.ToString();
    }
  }
}

TEST(GridShape, GroupsOfAnAxisPartitionTheRanks) {
  for (const GridShape& shape : AllShapes()) {
    for (Axis axis : kAxes) {
      std::set<std::vector<int>> groups;
      for (int rank = 0; rank < shape.ranks(); ++rank) {
        const std::vector<int> group = shape.Group(rank, axis);
        EXPECT_EQ(static_cast<int>(group.size()), shape.extent(axis));
        EXPECT_THAT(group, ::testing::Contains(rank));
        groups.insert(group);
      }
      EXPECT_EQ(static_cast<int>(groups.size()), shape.ranks() / shape.extent(axis));
    }
  }
}

TEST(GridShape, GroupsAreInTheOrderOfTheirCoordinate) {
  const GridShape shape = {.tensor = 2, .data = 2, .pipeline = 3};
  EXPECT_THAT(shape.Group(5, Axis::kTensor), ElementsAre(4, 5));
  EXPECT_THAT(shape.Group(5, Axis::kContext), ElementsAre(5));
  EXPECT_THAT(shape.Group(5, Axis::kData), ElementsAre(5, 7));
  EXPECT_THAT(shape.Group(5, Axis::kPipeline), ElementsAre(1, 5, 9));
}

TEST(GridShape, ComesFromAResolvedSpec) {
  ParallelSpec spec;
  spec.set_tensor(2);
  spec.set_pipeline(3);
  spec.set_data(4);
  const GridShape shape = GridShape::From(spec);
  EXPECT_EQ(shape.ranks(), 24);
  EXPECT_EQ(shape.ToString(), "tensor 2 x pipeline 3 x data 4");
}

TEST(GridShapeDeathTest, AnUnresolvedSpecDies) {
  EXPECT_EXIT(GridShape::From(ParallelSpec()), ::testing::ExitedWithCode(1), "data 0");
}

}  // namespace
}  // namespace twinstream
