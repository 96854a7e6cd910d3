// What a test makes of the emulated NCCL.
#pragma once

#include <nccl.h>

#include <cstddef>

namespace twinstream::gpu {

// What ncclCommGetAsyncError finds from now on, and what calls for data return, of every
// communicator; ncclSuccess: no failure.
void FailNccl(ncclResult_t result);
// How many communicators there are, of all ranks.
size_t NcclCommunicators();

}  // namespace twinstream::gpu
