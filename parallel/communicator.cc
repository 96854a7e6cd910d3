#include "parallel/communicator.h"

#include <numeric>

#include "core/check.h"

namespace twinstream {

void CheckCounts(Tensor inout, absl::Span<const int64_t> counts, int ranks, const char* what) {
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  Check(static_cast<int>(counts.size()) == ranks && sum == inout.elements(),
        "%s: %d counts with sum %d for %d ranks and %d elements", what, counts.size(), sum, ranks,
        inout.elements());
}

void CheckParts(Tensor tensor, RowParts parts, int ranks, const char* what) {
  Check(parts.begins.size() == parts.counts.size() &&
            parts.begins.size() % static_cast<size_t>(ranks) == 0,
        "%s: %d begins and %d counts of parts for %d ranks", what, parts.begins.size(),
        parts.counts.size(), ranks);
  for (size_t i = 0; i < parts.begins.size(); ++i) {
    Check(parts.begins[i] >= 0 && parts.counts[i] >= 0 &&
              parts.begins[i] + parts.counts[i] <= tensor.dim(0),
          "%s: rows from %d, %d of them, of a tensor %s", what, parts.begins[i], parts.counts[i],
          tensor.shape());
  }
}

}  // namespace twinstream
