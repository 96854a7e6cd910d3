// What a test makes of the emulated NCCL.
#pragma once

#include <nccl.h>

namespace twinstream::gpu {

// What ncclCommGetAsyncError finds from now on, and what calls for data return, of every
// communicator; ncclSuccess: no failure.
void FailNccl(ncclResult_t result);

}  // namespace twinstream::gpu
