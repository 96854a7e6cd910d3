#include "models/partition.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace twinstream {

std::vector<Range> PartitionLayers(const std::vector<double>& layer_costs, double first_extra,
                                   double last_extra, int stages) {
  const int64_t layers = static_cast<int64_t>(layer_costs.size());
  Check(1 <= stages && stages <= layers, "%d layers do not fill %d pipeline stages", layers,
        stages);
  // dearest[s][b]: cost of the dearest stage when stages s.. share layers b.. in the best way.
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> dearest(
      static_cast<size_t>(stages) + 1,
      std::vector<double>(static_cast<size_t>(layers) + 1, kImpossible));
  dearest.back().back() = 0;
  for (size_t s = static_cast<size_t>(stages); s-- > 0;) {
    for (int64_t begin = 0; begin < layers; ++begin) {
      double& best = dearest[s][static_cast<size_t>(begin)];
      double sum = 0;  // from the range's first layer on, so equal ranges cost exactly the same
      for (int64_t end = begin + 1; end <= layers; ++end) {
        sum += layer_costs[static_cast<size_t>(end - 1)];
        const double cost = sum + (begin == 0 ? first_extra : 0) + (end == layers ? last_extra : 0);
        best = std::min(best, std::max(cost, dearest[s + 1][static_cast<size_t>(end)]));
      }
    }
  }

  std::vector<Range> ranges;
  int64_t begin = 0;
  for (size_t s = 0; s < static_cast<size_t>(stages); ++s) {
    int64_t end = begin + 1;
    while (dearest[s + 1][static_cast<size_t>(end)] > dearest[0][0]) ++end;
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

}  // namespace twinstream
