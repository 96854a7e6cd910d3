#include "parallel/grid_shape.h"

#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace twinstream {
namespace {

using ::testing::ElementsAre;

std::vector<GridShape> AllShapes() {
  std::vector<GridShape> shapes;
  for (int tensor : {1, 2, 3}) {
    for (int context : {1, 2}) {
      for (int data : {1, 2, 5}) {
        for (int pipeline : {1, 3, 4}) {
          for (int expert : {1, data}) shapes.push_back({tensor, context, data, pipeline, expert});
        }
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

TEST(GridShape, GroupsOfAKindPartitionTheRanks) {
  for (const GridShape& shape : AllShapes()) {
    for (int kind = 0; kind < kGridGroups; ++kind) {
      const GridGroup group = static_cast<GridGroup>(kind);
      std::set<std::vector<int>> groups;
      std::multiset<int> members;
      for (int rank = 0; rank < shape.ranks(); ++rank) {
        EXPECT_THAT(shape.Group(rank, group), ::testing::Contains(rank));
        groups.insert(shape.Group(rank, group));
      }
      for (const std::vector<int>& one : groups) members.insert(one.begin(), one.end());
      EXPECT_EQ(static_cast<int>(members.size()), shape.ranks())
          << NameOf(group) << " of " << shape.ToString();
    }
  }
}

TEST(GridShape, GroupsAreInTheOrderOfTheirCoordinate) {
  const GridShape shape = {.tensor = 2, .data = 2, .pipeline = 3};
  EXPECT_THAT(shape.Group(5, GridGroup::kWorld), ::testing::SizeIs(12));
  EXPECT_THAT(shape.Group(5, GridGroup::kTensor), ElementsAre(4, 5));
  EXPECT_THAT(shape.Group(5, GridGroup::kContext), ElementsAre(5));
  EXPECT_THAT(shape.Group(5, GridGroup::kData), ElementsAre(5, 7));
  EXPECT_THAT(shape.Group(5, GridGroup::kPipeline), ElementsAre(1, 5, 9));
}

TEST(GridShape, ReplicasSpanContextAndData) {
  const GridShape shape = {.tensor = 2, .context = 2, .data = 4, .expert = 2};
  EXPECT_THAT(shape.Group(3, GridGroup::kReplicas), ElementsAre(1, 3, 5, 7, 9, 11, 13, 15));
  EXPECT_THAT(shape.Group(3, GridGroup::kExperts), ElementsAre(3, 7));
  EXPECT_THAT(shape.Group(11, GridGroup::kExperts), ElementsAre(11, 15));
  EXPECT_THAT(shape.Group(3, GridGroup::kExpertReplicas), ElementsAre(1, 3, 9, 11));
}

TEST(GridShape, ComesFromAResolvedSpec) {
  ParallelSpec spec;
  spec.set_tensor(2);
  spec.set_pipeline(3);
  spec.set_data(4);
  const GridShape shape = GridShape::From(spec);
  EXPECT_EQ(shape.ranks(), 24);
  EXPECT_EQ(shape.ToString(), "tensor 2 x pipeline 3 x data 4");
  EXPECT_EQ(shape.PlaceOf(15), "tensor 1, pipeline 1, data 3");
}

TEST(GridShapeDeathTest, AnUnresolvedSpecDies) {
  EXPECT_EXIT(GridShape::From(ParallelSpec()), ::testing::ExitedWithCode(1), "data 0");
  ParallelSpec spec;
  spec.set_data(3);
  spec.set_expert(2);
  EXPECT_EXIT(GridShape::From(spec), ::testing::ExitedWithCode(1), "expert 2 .* data 3");
}

}  // namespace
}  // namespace twinstream
