// Runtime: this process as one rank of an MPI job, from MPI_Init to MPI_Finalize: who it is, how it
// talks to the others, what signals ask of it, and how it ends the whole job when it fails.
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "parallel/communicator.h"
#include "parallel/transport.h"

namespace twinstream {

// One per process, made by the main thread first thing in main and destroyed last thing in it. Only
// that thread talks to other ranks. While it lives
// - SIGTERM, SIGINT and SIGUSR1 only set stop_requested(); SIGPIPE is ignored;
// - a failed Check, an exception that nobody catches and a fatal signal print one paragraph with
//   rank and host on stderr and end all ranks of the job (code 1) within seconds.
class Runtime {
 public:
  // Without mpirun: a job of one rank. argc, argv: main's.
  Runtime(int& argc, char**& argv);
  // Waits for the other ranks to come here too: every rank must leave main, or none.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  int local_rank() const { return local_rank_; }  // among the ranks of this host
  int local_size() const { return local_size_; }
  const std::string& hostname() const { return hostname_; }

  Transport& transport() { return *transport_; }
  Communicator& world() { return *world_; }

  // True once a signal asked this process to stop. Other ranks may not have been asked.
  bool stop_requested() const;

  // How long a rank waits for another before it gives the job up.
  void SetTimeout(double seconds);
  // This rank's place in the job, once it is known, for messages: "stage 1, tensor 0, data 3".
  void SetSelf(absl::string_view place);

 private:
  void ApplyWaitPolicy();
  void MeetThisHost();
  // Prints the paragraph and ends the job.
  [[noreturn]] void Fail(absl::string_view paragraph);

  std::string hostname_;
  int local_rank_ = 0, local_size_ = 1;
  double timeout_seconds_ = 600;
  std::string self_;  // "rank 3 (stage 1, tensor 0, data 3)"
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Communicator> world_;
};

}  // namespace twinstream
