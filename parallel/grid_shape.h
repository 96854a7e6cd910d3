// GridShape: which rank sits where. Tensor varies fastest, then context, data, pipeline. Pure
// arithmetic.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace twinstream {

// Which ranks a communicator joins. Two ranks may meet in several groups.
enum class GridGroup {
  kWorld,
  // Ranks that differ along one axis only.
  kTensor,
  kContext,
  kData,
  kPipeline,
  kReplicas,        // context x data: ranks that hold the same parameters, experts aside
  kExperts,         // `expert` consecutive data ranks, which hold all experts together
  kExpertReplicas,  // context x (data / expert): ranks that hold the same experts
};
constexpr int kGridGroups = 8;

absl::string_view NameOf(GridGroup group);  // "world", "tensor", ..., "expert replicas"

struct GridCoordinates {
  int tensor = 0, context = 0, data = 0, pipeline = 0;
};

struct GridShape {
  int tensor = 1, context = 1, data = 1, pipeline = 1;
  int expert = 1;  // divides data

  // From a resolved spec (parallel.data > 0).
  static GridShape From(const ParallelSpec& spec);

  int ranks() const { return tensor * context * data * pipeline; }
  GridCoordinates At(int rank) const;
  int RankOf(const GridCoordinates& at) const;
  // World ranks of the rank's group, itself included, ascending: context varies faster than data.
  std::vector<int> Group(int rank, GridGroup group) const;
  // Axes in the order in which a person reads them, context and expert only where there are
  // several.
  std::string ToString() const;         // "tensor 2 x pipeline 2 x data 1"
  std::string PlaceOf(int rank) const;  // "tensor 1, pipeline 0, data 0"
};

}  // namespace twinstream
