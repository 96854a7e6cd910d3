// Runtime: this process as one rank of an MPI job, from MPI_Init to MPI_Finalize: who it is, how it
// talks to the others, what signals ask of it, and how it ends the whole job when it fails.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "parallel/communicator.h"
#include "parallel/transport.h"

namespace twinstream {

// One per process, made by the main thread first thing in main and destroyed last thing in it.
// Other threads talk to other ranks through transport() alone. While it lives, SIGPIPE is ignored;
// a failed Check, an exception that nobody catches and a fatal signal print one paragraph with rank
// and host on stderr and end all ranks of the job (code 1) within seconds.
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
  const std::string& hostname() const { return hosts_[static_cast<size_t>(rank())]; }
  const std::vector<std::string>& hosts() const { return hosts_; }  // of each rank

  Transport& transport() { return *transport_; }
  Communicator& world() { return *world_; }

  // For what can end in good order; without it SIGTERM, SIGINT and SIGUSR1 kill, as everywhere.
  // Once, before anything computes. From then on
  // - they only set stop_requested(), on a thread that computes nothing: the calling thread, and
  //   those that it starts, block them, but for one;
  // - after SIGTERM, a rank that waits for another says so on stderr, once.
  void CatchStopSignals();
  // True once a caught signal asked this process to stop. Other ranks may not have been asked.
  bool stop_requested() const;

  // How long a rank waits for another before it gives the job up.
  void SetTimeout(double seconds);
  // Every rank's place in the job, once it is known, for messages: "tensor 0, pipeline 1, data 3".
  void SetPlaces(std::function<std::string(int rank)> place_of);

 private:
  std::string Name(int rank) const;  // "rank 3 (tensor 0, pipeline 1, data 3) on host b"
  void SpeakWhenToldToEnd(const std::stop_token& closing) const;
  void ApplyWaitPolicy();
  void MeetThisHost();
  // Prints the paragraph and ends the job.
  [[noreturn]] void Fail(absl::string_view paragraph);

  int local_rank_ = 0, local_size_ = 1;
  double timeout_seconds_ = 600;
  std::function<std::string(int rank)> place_of_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::string> hosts_;
  std::unique_ptr<Communicator> world_;
  std::atomic<bool> failing_{false};  // it has said why
  std::jthread speaker_;
};

}  // namespace twinstream
