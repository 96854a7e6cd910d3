// What core/cuda/nccl.cc finds in NCCL's library, found in the emulated one.
#include <map>
#include <string>

#include "core/check.h"
#include "core/cuda/nccl.h"

namespace twinstream {
namespace {

template <typename Function>
void* AddressOf(Function* function) {
  return reinterpret_cast<void*>(function);
}

void* Look(const std::string& name) {
  static const std::map<std::string, void*> functions = {
      {"ncclGetUniqueId", AddressOf(ncclGetUniqueId)},
      {"ncclCommInitRank", AddressOf(ncclCommInitRank)},
      {"ncclCommDestroy", AddressOf(ncclCommDestroy)},
      {"ncclCommGetAsyncError", AddressOf(ncclCommGetAsyncError)},
      {"ncclGetErrorString", AddressOf(ncclGetErrorString)},
      {"ncclGetLastError", AddressOf(ncclGetLastError)},
      {"ncclGroupStart", AddressOf(ncclGroupStart)},
      {"ncclGroupEnd", AddressOf(ncclGroupEnd)},
      {"ncclAllReduce", AddressOf(ncclAllReduce)},
      {"ncclAllGather", AddressOf(ncclAllGather)},
      {"ncclReduceScatter", AddressOf(ncclReduceScatter)},
      {"ncclReduce", AddressOf(ncclReduce)},
      {"ncclBroadcast", AddressOf(ncclBroadcast)},
      {"ncclSend", AddressOf(ncclSend)},
      {"ncclRecv", AddressOf(ncclRecv)}};
  const auto found = functions.find(name);
  Check(found != functions.end(), "%s is not emulated", name);
  return found->second;
}

}  // namespace

NcclSymbol::NcclSymbol(const char* name) : address_(Look(name)) {}

const Nccl& LoadNccl() {
  static const Nccl nccl = {};
  return nccl;
}

}  // namespace twinstream
