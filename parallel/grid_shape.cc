#include "parallel/grid_shape.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace twinstream {
namespace {

// Coordinates in which the members of a group agree.
std::array<int, 4> CommonCoordinates(const GridShape& shape, int rank, GridGroup group) {
  const GridCoordinates at = shape.At(rank);
  switch (group) {
    case GridGroup::kWorld:
      return {};
    case GridGroup::kTensor:
      return {at.context, at.data, at.pipeline};
    case GridGroup::kContext:
      return {at.tensor, at.data, at.pipeline};
    case GridGroup::kData:
      return {at.tensor, at.context, at.pipeline};
    case GridGroup::kPipeline:
      return {at.tensor, at.context, at.data};
    case GridGroup::kReplicas:
      return {at.tensor, at.pipeline};
    case GridGroup::kExperts:
      return {at.tensor, at.context, at.data / shape.expert, at.pipeline};
    case GridGroup::kExpertReplicas:
      return {at.tensor, at.data % shape.expert, at.pipeline};
  }
  Die("unknown grid group");
}

}  // namespace

absl::string_view NameOf(GridGroup group) {
  switch (group) {
    case GridGroup::kWorld:
      return "world";
    case GridGroup::kTensor:
      return "tensor";
    case GridGroup::kContext:
      return "context";
    case GridGroup::kData:
      return "data";
    case GridGroup::kPipeline:
      return "pipeline";
    case GridGroup::kReplicas:
      return "replicas";
    case GridGroup::kExperts:
      return "experts";
    case GridGroup::kExpertReplicas:
      return "expert replicas";
  }
  Die("unknown grid group");
}

GridShape GridShape::From(const ParallelSpec& spec) {
  const GridShape shape = {.tensor = spec.tensor(),
                           .context = spec.context(),
                           .data = spec.data(),
                           .pipeline = spec.pipeline(),
                           .expert = spec.expert()};
  Check(shape.tensor > 0 && shape.context > 0 && shape.data > 0 && shape.pipeline > 0,
        "a grid needs extents above 0: tensor %d, context %d, data %d, pipeline %d", shape.tensor,
        shape.context, shape.data, shape.pipeline);
  Check(shape.expert > 0 && shape.data % shape.expert == 0, "expert %d does not divide data %d",
        shape.expert, shape.data);
  return shape;
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

std::vector<int> GridShape::Group(int rank, GridGroup group) const {
  const std::array<int, 4> common = CommonCoordinates(*this, rank, group);
  std::vector<int> members;
  for (int r = 0; r < ranks(); ++r) {
    if (CommonCoordinates(*this, r, group) == common) members.push_back(r);
  }
  return members;
}

std::string GridShape::ToString() const {
  return absl::StrCat("tensor ", tensor, context > 1 ? absl::StrCat(" x context ", context) : "",
                      " x pipeline ", pipeline, " x data ", data,
                      expert > 1 ? absl::StrCat(" (expert ", expert, ")") : "");
}

std::string GridShape::PlaceOf(int rank) const {
  const GridCoordinates at = At(rank);
  return absl::StrCat("tensor ", at.tensor,
                      context > 1 ? absl::StrCat(", context ", at.context) : "", ", pipeline ",
                      at.pipeline, ", data ", at.data);
}

}  // namespace twinstream
