// CommunicationThread: carries out collectives while the main thread computes: one thread per rank,
// which runs what is posted in the order of posting. While it has nothing to run it moves the
// messages that the main thread left under way, since MPI moves nothing that nobody looks at.
//
// Its communicators are its own, with tags of their own, so no message of a posted operation can
// meet one of the main thread, and neither thread waits for the other's turn.
//
// Where a network joins the devices there is no thread: a posted operation is given at once to a
// device of its own beside the main thread's, and to communicate is the devices' business. It waits
// for what the main thread's device had been given when it was posted, and Wait makes that device,
// not the host, wait for it. Nor is there a thread where tensors are staged: it would wait for all
// that the device has been given before the first byte moved.
//
// No order of the queues over the ranks can deadlock, given what callers see to:
// - A posted operation is a collective of a group within one pipeline rank's grid of tensor,
//   context and data ranks (expert groups among them), or an exchange between pipeline ranks.
// - The ranks of one pipeline rank run the same program, so they post the same operations in the
//   same order.
// - Exchanges between pipeline ranks (tied embeddings) come after all reductions of both sides and
//   before all gathers, in the same order everywhere.
// So one order of all operations of a step exists that every queue keeps to. The first operation in
// it that is not done is the next of all its members, once they have posted it; and what a main
// thread does before it posts waits for main threads (proved by CheckSchedule) and for operations
// that precede in that order.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/device.h"
#include "parallel/background_transport.h"
#include "parallel/box.h"
#include "parallel/process_grid.h"

namespace twinstream {

enum class Overlap { kOff, kOn };

// All but the posted operations themselves runs on the main thread.
class CommunicationThread {
 public:
  using Operation = std::function<void(Range items)>;
  using Number =
      int64_t;  // of a posted operation: 1, 2, ...; 0 was never posted and counts as done

  // kOff, or a job of one rank: no thread; Post runs the operation before it returns. For tensors
  // in memory of the host, which no device touches; its grid has every group. `transport` outlives
  // this.
  CommunicationThread(Overlap overlap, const GridShape& shape, Transport& transport);
  // The same for tensors of `device`, which outlives this. use: of the posted operations.
  // foreground: the main thread's grid.
  CommunicationThread(Overlap overlap, const GridUse& use, const ProcessGrid& foreground,
                      Transport& transport, Device& device);
  ~CommunicationThread();  // once everything posted is done

  // For posted operations; and for the main thread while nothing is posted.
  const ProcessGrid& grid() const { return grid_; }
  Device& device() const { return beside_ == nullptr ? *device_ : *beside_; }

  // Makes room for so many operations posted at a time, besides those of other callers.
  void Reserve(int64_t operations);
  // what: names the operation in messages about failures and long waits. `operation` and `what`
  // stay where they are until it is done. Allocates nothing.
  Number Post(const char* what, const Operation& operation, Range items);
  bool IsDone(Number number);
  // Returns when the operation is done, and those before it, for all that the device is given
  // later. A timeout in it ends the job from its own thread, with names.
  void Wait(Number number);
  void WaitForAll() { Wait(posted_); }

  // The main thread is about to compute and leaves messages of its own under way.
  void KeepMoving();

 private:
  struct Entry {
    const char* what = nullptr;
    const Operation* operation = nullptr;
    Range items;
    int64_t mark = 0;  // of the device beside: it has been given the operation
  };

  void StartThread(Overlap overlap);
  Number RunBeside(const Entry& entry);
  void Work();
  void RunNext(std::unique_lock<std::mutex>& lock);
  void MoveMessages(std::unique_lock<std::mutex>& lock);
  Entry& NextEntry();  // of a number that is posted with it
  Entry& EntryOf(Number number) { return queue_[static_cast<size_t>(number) % queue_.size()]; }

  BackgroundTransport transport_;
  Device* const device_ = nullptr;
  const std::unique_ptr<Device> beside_;  // null: posted operations use device_
  ProcessGrid grid_;
  Number posted_ = 0;  // written by the main thread alone, under the lock

  std::mutex mutex_;              // guards what follows
  std::condition_variable wake_;  // the thread: there is something to do
  std::condition_variable done_changed_;
  std::vector<Entry> queue_;  // a ring
  Number done_ = 0;
  bool moving_ = false;  // messages of the main thread may be under way
  bool closing_ = false;
  std::chrono::microseconds next_look_{0};  // at messages under way

  std::optional<std::thread> thread_;  // last: runs as soon as it is there
};

}  // namespace twinstream
