// Transport: bytes from one rank of the job to another. Two implementations: MPI between processes
// and mailboxes between threads of one process (tests). HostCommunicator
// (parallel/host_communicator.h) builds all collectives on it once, so both give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/types/span.h"
#include "core/tensor.h"

namespace twinstream {

// When a rank that waits for another gives up, and how it names the two.
struct WaitPolicy {
  double timeout_seconds = 600;
  // Any rank of the job: "rank 3 (tensor 1, pipeline 1, data 0) on host b". Without one: "rank 3".
  std::function<std::string(int rank)> name_of;
};

// Thread-safe: a computing thread and a communication thread share one. Whoever sends or receives a
// message also waits for it.
class Transport {
 public:
  // A message under way, owned by the transport until Wait.
  using Request = int64_t;

  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Never blocks on the receiver; `bytes` stay untouched until Wait. Messages of one (from, to,
  // tag) arrive in order.
  virtual Request Send(absl::Span<const std::byte> bytes, int to, int tag) = 0;
  // Exactly bytes.size() bytes must arrive; another size is a failed machine (Check).
  virtual Request Receive(absl::Span<std::byte> bytes, int from, int tag) = 0;
  // Returns when the request is done. `what` names the operation for messages: "all-reduce over
  // tensor".
  virtual void Wait(Request request, const char* what) = 0;
  // The same for a thread that is not in a hurry: leaves the cores to those who compute.
  virtual void WaitInBackground(Request request, const char* what) = 0;
  // Moves messages that nobody waits for at the moment a little further, of all threads. True while
  // there are any.
  virtual bool Progress() = 0;
  // Before other threads use the transport.
  virtual void SetWaitPolicy(WaitPolicy policy) = 0;
  virtual double timeout_seconds() const = 0;  // the policy's
  // The longest wait in progress if it has lasted so many seconds, or nothing: "rank 3 was waiting
  // in all-reduce over tensor for rank 2 (during step 7)". From any thread, also while MPI itself
  // blocks.
  virtual std::string WaitInProgress(double at_least_seconds) const = 0;
};

}  // namespace twinstream
