// Layers -> pipeline stages. Pure arithmetic.
#pragma once

#include <vector>

#include "parallel/box.h"

namespace twinstream {

// Cuts the layers into `stages` contiguous ranges of at least one layer each, so that the dearest
// stage is as cheap as can be. layer_costs: any unit, not negative; first_extra (embedding) falls
// on the first stage, last_extra (head) on the last. Among equally good cuts the one with the
// fewest layers on the first stage, then on the second, ...: early stages hold the most
// micro-batches in flight. Dies when there are fewer layers than stages (job_rules refuses that).
std::vector<Range> PartitionLayers(const std::vector<double>& layer_costs, double first_extra,
                                   double last_extra, int stages);

}  // namespace twinstream
