// CheckCollectives: the claims about a Communicator, for any transport.
#pragma once

#include "parallel/communicator.h"
#include "parallel/grid_use.h"
#include "parallel/transport.h"

namespace twinstream::testing {

// Every collective and message pattern among all ranks of `transport`, with googletest
// expectations. Each rank's input is a function of its rank, so every rank knows the whole answer.
void CheckCollectives(Transport& transport);
// The same of tensors alone, among all members of a communicator that sums in rank order and takes
// tensors in host memory.
void CheckTensors(Communicator& world);
// What CheckTensors asks of the devices of so many ranks.
GroupUse AllWorkOf(int ranks);

}  // namespace twinstream::testing
