// GridShape: which rank sits where. Tensor varies fastest, then context, data, pipeline. Pure
// arithmetic.
#pragma once

#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace twinstream {

enum class Axis { kTensor, kContext, kData, kPipeline };

struct GridCoordinates {
  int tensor = 0, context = 0, data = 0, pipeline = 0;
};

struct GridShape {
  int tensor = 1, context = 1, data = 1, pipeline = 1;

  // From a resolved spec (parallel.data > 0).
  static GridShape From(const ParallelSpec& spec);

  int ranks() const { return tensor * context * data * pipeline; }
  int extent(Axis axis) const;
  GridCoordinates At(int rank) const;
  int RankOf(const GridCoordinates& at) const;
  // World ranks that differ from `rank` only along `axis`, in order of that coordinate (itself
  // included).
  std::vector<int> Group(int rank, Axis axis) const;
  std::string ToString() const;  // "tensor 2 x pipeline 2 x data 1"
};

}  // namespace twinstream
