// The ranks that share a unique id of the emulated NCCL (NCCL calls them a clique), and where their
// calls meet. From any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/cuda/emulated/nccl_calls.h"

namespace twinstream::gpu {

class NcclClique {
 public:
  // The first to come sets the size. Dies of a rank or a card that is there already.
  void Join(int rank, int size, int card);
  bool IsComplete() const { return is_complete_; }
  // Whether it was the last to leave.
  bool Leave();

  // A rank is about to exchange its first message with a peer: NCCL connects the two then, and the
  // host of the first waits for the other to come to it too.
  void Meet(int rank, int peer);
  bool HaveMet(int rank, int peer);

  // The calls of a group begin on a rank, whose group before has ended. Those that have met all
  // that they need move their data at once, the others when the latest does so.
  void Begin(int rank, absl::Span<const NcclCall> calls);
  // Whether all of them are done, with which their group has ended.
  bool IsDone(int rank);

 private:
  struct Member {
    int card = -1;  // until it joins
    bool in_group = false;
    int64_t under_way = 0;             // of the group's calls
    std::deque<NcclCall> collectives;  // that wait for other ranks'
  };
  // From one rank to another, in order: at least one of the two is empty.
  struct Messages {
    std::deque<NcclCall> sends, receives;
  };

  Member& At(int rank) { return members_[static_cast<size_t>(rank)]; }
  void MeetCollectives();
  void MeetMessages(int from, int to);

  std::mutex mutex_;  // guards what follows
  std::vector<Member> members_;
  std::map<std::pair<int, int>, Messages> messages_;  // by from, to
  std::set<std::pair<int, int>> met_;                 // by rank, peer
  int joined_ = 0, left_ = 0;
  std::atomic<bool> is_complete_ = false;
};

}  // namespace twinstream::gpu
