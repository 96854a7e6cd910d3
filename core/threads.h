// Threads of this process beside those that compute.
#pragma once

namespace twinstream {

// Ops that the calling thread asks the CPU for start no further threads: the cores are others'.
void ComputeOnOneThread();

}  // namespace twinstream
