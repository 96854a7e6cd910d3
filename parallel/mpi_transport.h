// MpiTransport: ranks as MPI processes, one message one MPI point-to-point message of
// MPI_COMM_WORLD. No MPI collectives: they sum in an order of their own and cannot say whom they
// wait for.
#pragma once

#include <cstdint>
#include <memory>

#include "parallel/transport.h"

namespace twinstream {

// Dies with MPI's own text when an MPI call did not return MPI_SUCCESS.
void CheckMpi(int result, const char* call, const char* file = __builtin_FILE(),
              int line = __builtin_LINE());

// MPI is initialised and outlives the transport; used by one thread. Messages above `largest_part`
// bytes travel in parts (MPI counts are int); the same on all ranks.
std::unique_ptr<Transport> MakeMpiTransport(int64_t largest_part = int64_t{1} << 30);

}  // namespace twinstream
