// NCCL, loaded when it is first needed: jobs of one rank, and ranks that share a card, do without.
#pragma once

#include <nccl.h>

namespace twinstream {

// A function of the library, as whatever type it is taken for. Dies when there is none of the name.
class NcclSymbol {
 public:
  explicit NcclSymbol(const char* name);

  template <typename Function>
  operator Function() const {  // NOLINT(google-explicit-constructor)
    return reinterpret_cast<Function>(address_);
  }

 private:
  void* address_;
};

// Its functions, under their names without the prefix.
struct Nccl {
  decltype(&ncclGetUniqueId) GetUniqueId = NcclSymbol("ncclGetUniqueId");
  decltype(&ncclCommInitRank) CommInitRank = NcclSymbol("ncclCommInitRank");
  decltype(&ncclCommDestroy) CommDestroy = NcclSymbol("ncclCommDestroy");
  decltype(&ncclCommGetAsyncError) CommGetAsyncError = NcclSymbol("ncclCommGetAsyncError");
  decltype(&ncclGetErrorString) GetErrorString = NcclSymbol("ncclGetErrorString");
  decltype(&ncclGetLastError) GetLastError = NcclSymbol("ncclGetLastError");
  decltype(&ncclGroupStart) GroupStart = NcclSymbol("ncclGroupStart");
  decltype(&ncclGroupEnd) GroupEnd = NcclSymbol("ncclGroupEnd");
  decltype(&ncclAllReduce) AllReduce = NcclSymbol("ncclAllReduce");
  decltype(&ncclAllGather) AllGather = NcclSymbol("ncclAllGather");
  decltype(&ncclReduceScatter) ReduceScatter = NcclSymbol("ncclReduceScatter");
  decltype(&ncclReduce) Reduce = NcclSymbol("ncclReduce");
  decltype(&ncclBroadcast) Broadcast = NcclSymbol("ncclBroadcast");
  decltype(&ncclSend) Send = NcclSymbol("ncclSend");
  decltype(&ncclRecv) Recv = NcclSymbol("ncclRecv");
};

// Loaded once; dies when the library is not there.
const Nccl& LoadNccl();

}  // namespace twinstream
