// Stands in for NCCL's header of this name where core/cuda is compiled for a machine without a
// card: what it uses of NCCL, under NCCL's own names and with NCCL's meaning. Ranks are threads of
// one process, with a card each (runtime.h). Whatever NCCL refuses or leaves undefined ends the
// process, as do some calls that core/cuda does without: groups of calls for several communicators
// or streams, and communicators made or destroyed in a group.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

// NOLINTBEGIN(readability-identifier-naming)
using ncclComm_t = struct ncclComm*;

struct ncclUniqueId {
  char internal[128];
};

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum ncclRedOp_t { ncclSum = 0, ncclMax = 2 };
enum ncclDataType_t {
  ncclInt8 = 0,
  ncclInt32 = 2,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9
};
// NOLINTEND(readability-identifier-naming)

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int size, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t communicator);
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t communicator);

ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();

// Counts are in elements: all-gather's of what a rank sends, reduce-scatter's of what it receives.
ncclResult_t ncclAllReduce(const void* sent, void* received, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t communicator, cudaStream_t stream);
ncclResult_t ncclAllGather(const void* sent, void* received, size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* sent, void* received, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t communicator, cudaStream_t stream);
ncclResult_t ncclReduce(const void* sent, void* received, size_t count, ncclDataType_t type,
                        ncclRedOp_t reduction, int root, ncclComm_t communicator,
                        cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* sent, void* received, size_t count, ncclDataType_t type,
                           int root, ncclComm_t communicator, cudaStream_t stream);
ncclResult_t ncclSend(const void* sent, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream);
ncclResult_t ncclRecv(void* received, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream);
