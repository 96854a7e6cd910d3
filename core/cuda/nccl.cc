#include "core/cuda/nccl.h"

#include <dlfcn.h>

#include "core/check.h"

namespace twinstream {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

// The same handle every time.
void* Library() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    Die(
        absl::StrFormat("ranks on several cards need NCCL, and the loader says \"%s\": install it "
                        "and name its folder in LD_LIBRARY_PATH",
                        dlerror()));
  }
  return library;
}

}  // namespace

NcclSymbol::NcclSymbol(const char* name) : address_(dlsym(Library(), name)) {
  Check(address_ != nullptr, "%s has no function %s: install a newer one", kLibrary, name);
}

const Nccl& LoadNccl() {
  static const Nccl nccl = {};
  return nccl;
}

}  // namespace twinstream
