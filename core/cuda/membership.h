// Membership: this rank in a group of NCCL's.
#pragma once

#include <nccl.h>

#include <atomic>
#include <string>

#include "core/cuda/nccl.h"
#include "core/device_collectives.h"

namespace twinstream {

class Membership {
 public:
  explicit Membership(const DeviceGroup& group);  // `group` outlives it
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Returns when all members have come. Once.
  void Join();
  ncclComm_t get() const { return communicator_; }
  const std::string& name() const { return group_.name; }

  // Dies with the group's name and NCCL's reason unless it is ncclSuccess.
  void Must(ncclResult_t result) const;

  // What has gone wrong beside the host, or nothing. From any thread.
  std::string Failure() const;

 private:
  const DeviceGroup& group_;
  const Nccl& nccl_ = LoadNccl();
  std::atomic<ncclComm_t> communicator_ = nullptr;
};

// The first failure of any membership of this process, with its group's name, or nothing. From any
// thread.
std::string AnyFailure();

}  // namespace twinstream
