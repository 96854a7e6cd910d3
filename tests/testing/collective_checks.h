// CheckCollectives: the claims about a Communicator, for any transport.
#pragma once

#include "parallel/transport.h"

namespace twinstream::testing {

// Every collective and message pattern among all ranks of `transport`, with googletest
// expectations. Each rank's input is a function of its rank, so every rank knows the whole answer.
void CheckCollectives(Transport& transport);

}  // namespace twinstream::testing
