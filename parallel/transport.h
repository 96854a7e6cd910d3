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

// What a rank says while it waits too long or is told to end: set once, from the job's layout.
struct WaitPolicy {
  double timeout_seconds = 600;
  // Asked about every 0.1 s of waiting: true once this process was told to end (SIGTERM). A wait
  // that then lasts another half second names what it waits for on stderr, once: mpirun kills a
  // second after SIGTERM.
  std::function<bool()> told_to_end;
  std::string self;  // "rank 3 (stage 1, tensor 1, data 0)"
};

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
  virtual void SetWaitPolicy(WaitPolicy policy) = 0;
};

}  // namespace twinstream
