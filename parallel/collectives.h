// What all ranks of a job tell each other besides a model's tensors. Collective: every rank calls
// the same in the same order. `world` is for memory of the host.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "parallel/communicator.h"

namespace twinstream {

// Rank 0's text on every rank; the others' argument is ignored. Below 2 GiB.
std::string BroadcastText(Communicator& world, std::string text);

// Every rank's text (any bytes), in rank order, on every rank. Below 2 GiB together.
std::vector<std::string> GatherTexts(Communicator& world, const std::string& text);

// The sum, in rank order, or the largest of all ranks' values, one by one, in place.
void AllReduceValues(Communicator& world, absl::Span<double> values, Reduction reduction);
double AllReduceValue(Communicator& world, double value, Reduction reduction);

// Whether any rank says so.
bool AnyRank(Communicator& world, bool here);

// OK if it is OK on every rank; else, on every rank, the failure of the lowest rank that has one,
// prefixed with that rank unless all ranks fail alike. So an error of one rank's disk ends all
// ranks in good order.
absl::Status AgreeOnStatus(Communicator& world, const absl::Status& status);

}  // namespace twinstream
