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

struct MpiTransportOptions {
  // Larger messages travel in parts of so many bytes (MPI counts are int); the same on all ranks.
  int64_t largest_part = int64_t{1} << 30;
  // Sends are synchronous (MPI_Issend): done only when their receive has begun, whatever their
  // size. MPI may do so with any message; tests make it do so with all.
  bool synchronous_sends = false;
};

// MPI is initialised with MPI_THREAD_SERIALIZED at least and outlives the transport, which lets one
// thread into MPI at a time: while several threads use it, MPI is called by nobody else.
std::unique_ptr<Transport> MakeMpiTransport(const MpiTransportOptions& options = {});

}  // namespace twinstream
