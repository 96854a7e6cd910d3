#include "core/cuda/nccl.h"

#include <dlfcn.h>

#include "core/check.h"

namespace twinstream {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

template <typename Function>
void Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  Check(*function != nullptr, "%s has no function %s: install a newer one", kLibrary, name);
}

Nccl Load() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    Die(
        absl::StrFormat("ranks on several cards need NCCL, and the loader says \"%s\": install it "
                        "and name its folder in LD_LIBRARY_PATH",
                        dlerror()));
  }
  Nccl nccl;
  Find(library, "ncclGetUniqueId", &nccl.GetUniqueId);
  Find(library, "ncclCommInitRank", &nccl.CommInitRank);
  Find(library, "ncclCommDestroy", &nccl.CommDestroy);
  Find(library, "ncclCommGetAsyncError", &nccl.CommGetAsyncError);
  Find(library, "ncclGetErrorString", &nccl.GetErrorString);
  Find(library, "ncclGetLastError", &nccl.GetLastError);
  Find(library, "ncclGroupStart", &nccl.GroupStart);
  Find(library, "ncclGroupEnd", &nccl.GroupEnd);
  Find(library, "ncclAllReduce", &nccl.AllReduce);
  Find(library, "ncclAllGather", &nccl.AllGather);
  Find(library, "ncclReduceScatter", &nccl.ReduceScatter);
  Find(library, "ncclReduce", &nccl.Reduce);
  Find(library, "ncclBroadcast", &nccl.Broadcast);
  Find(library, "ncclSend", &nccl.Send);
  Find(library, "ncclRecv", &nccl.Recv);
  return nccl;
}

}  // namespace

const Nccl& LoadNccl() {
  static const Nccl nccl = Load();
  return nccl;
}

}  // namespace twinstream
