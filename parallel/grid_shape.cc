#include "parallel/grid_shape.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace twinstream {
namespace {

int& CoordinateOf(GridCoordinates& at, Axis axis) {
  switch (axis) {
    case Axis::kTensor:
      return at.tensor;
    case Axis::kContext:
      return at.context;
    case Axis::kData:
      return at.data;
    case Axis::kPipeline:
      return at.pipeline;
  }
  Die("unknown grid axis");
}

}  // namespace

GridShape GridShape::From(const ParallelSpec& spec) {
  const GridShape shape = {spec.tensor(), spec.context(), spec.data(), spec.pipeline()};
  Check(shape.tensor > 0 && shape.context > 0 && shape.data > 0 && shape.pipeline > 0,
        "a grid needs extents above 0: tensor %d, context %d, data %d, pipeline %d", shape.tensor,
        shape.context, shape.data, shape.pipeline);
  return shape;
}

int GridShape::extent(Axis axis) const {
  GridCoordinates extents = {tensor, context, data, pipeline};
  return CoordinateOf(extents, axis);
}

GridCoordinates GridShape::At(int rank) const {
  Check(0 <= rank && rank < ranks(), "rank %d of a grid of %d ranks", rank, ranks());
  return {.tensor = rank % tensor,
          .context = rank / tensor % context,
          .data = rank / (tensor * context) % data,
          .pipeline = rank / (tensor * context * data)};
}

int GridShape::RankOf(const GridCoordinates& at) const {
  return ((at.pipeline * data + at.data) * context + at.context) * tensor + at.tensor;
}

std::vector<int> GridShape::Group(int rank, Axis axis) const {
  GridCoordinates at = At(rank);
  std::vector<int> group;
  for (int i = 0; i < extent(axis); ++i) {
    CoordinateOf(at, axis) = i;
    group.push_back(RankOf(at));
  }
  return group;
}

std::string GridShape::ToString() const {
  return absl::StrCat("tensor ", tensor, context > 1 ? absl::StrCat(" x context ", context) : "",
                      " x pipeline ", pipeline, " x data ", data);
}

}  // namespace twinstream
