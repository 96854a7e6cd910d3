// RunRanks: the ranks of a job as threads of the test.
#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "parallel/transport.h"

namespace twinstream::testing {

// Calls `body` once per rank, at the same time, and returns when all have returned. Expectations
// are allowed inside. A rank that waits a minute for another ends the test with both names.
void RunRanks(int ranks, absl::FunctionRef<void(Transport& transport)> body);

// 0, 1, ..., size - 1: the members of a group of everybody.
std::vector<int> AllRanks(int size);

}  // namespace twinstream::testing
