#include "core/cuda/membership.h"

#include <cstring>
#include <mutex>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"

namespace twinstream {
namespace {

struct Memberships {
  std::mutex mutex;
  std::set<const Membership*> all;
};

Memberships& OfThisProcess() {
  static Memberships& memberships = *new Memberships;  // never destroyed: a watch may ask late
  return memberships;
}

}  // namespace

Membership::Membership(const DeviceGroup& group) : group_(group) {
  const std::lock_guard lock(OfThisProcess().mutex);
  OfThisProcess().all.insert(this);
}

Membership::~Membership() {
  {
    const std::lock_guard lock(OfThisProcess().mutex);
    OfThisProcess().all.erase(this);
  }
  nccl_.CommDestroy(communicator_);
}

void Membership::Join() {
  ncclUniqueId id;
  static_assert(sizeof(id) == sizeof(group_.id));
  std::memcpy(&id, group_.id.data(), sizeof(id));
  ncclComm_t communicator = nullptr;
  Must(nccl_.CommInitRank(&communicator, group_.size, id, group_.rank));
  communicator_ = communicator;
}

void Membership::Must(ncclResult_t result) const {
  Check(result == ncclSuccess, "communication over %s: %s: %s", group_.name,
        nccl_.GetErrorString(result), nccl_.GetLastError(communicator_));
}

std::string Membership::Failure() const {
  const ncclComm_t communicator = communicator_;
  ncclResult_t result = ncclSuccess;
  if (communicator == nullptr) return "";
  if (nccl_.CommGetAsyncError(communicator, &result) != ncclSuccess) return "no answer from NCCL";
  if (result == ncclSuccess || result == ncclInProgress) return "";
  return absl::StrFormat("%s: %s", nccl_.GetErrorString(result), nccl_.GetLastError(communicator));
}

std::string AnyFailure() {
  const std::lock_guard lock(OfThisProcess().mutex);
  for (const Membership* membership : OfThisProcess().all) {
    const std::string failure = membership->Failure();
    if (!failure.empty()) return absl::StrCat(membership->name(), ": ", failure);
  }
  return "";
}

}  // namespace twinstream
