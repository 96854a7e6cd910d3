// The emulated NCCL: its functions. What they do with data is nccl_clique.cc's.
#include "core/cuda/emulated/nccl.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/cuda/emulated/nccl_calls.h"
#include "core/cuda/emulated/nccl_clique.h"
#include "core/cuda/emulated/runtime.h"
#include "core/cuda/emulated/streams.h"

// One rank of a clique.
struct ncclComm {  // NOLINT(readability-identifier-naming): NCCL's
  const std::string id;
  twinstream::gpu::NcclClique& clique;
  const int rank, size, card;
  std::atomic<int64_t> groups = 0;  // of calls that are not done, or recorded in a graph
};

namespace twinstream::gpu {
namespace {

struct Library {
  std::mutex mutex;  // guards what follows
  uint64_t ids = 0;
  std::map<std::string, NcclClique> cliques;  // by the bytes of their id
  std::map<ncclComm_t, std::unique_ptr<ncclComm>> communicators;
  std::atomic<ncclResult_t> failure = ncclSuccess;
};

Library& TheLibrary() {
  static Library& library = *new Library;  // never destroyed: communicators may be later
  return library;
}

ncclComm& Find(ncclComm_t communicator) {
  const std::lock_guard lock(TheLibrary().mutex);
  Check(TheLibrary().communicators.count(communicator) > 0,
        "NCCL is given a communicator that is none, or has been destroyed");
  return *communicator;
}

// One group of calls on its way over a communicator, which cannot be destroyed meanwhile.
class Passage {
 public:
  explicit Passage(ncclComm* communicator) : communicator_(communicator) {
    ++communicator_->groups;
  }
  Passage(const Passage& other) : Passage(other.communicator_) {}
  Passage& operator=(const Passage&) = delete;
  ~Passage() { End(); }

  void End() {
    if (communicator_ != nullptr) --communicator_->groups;
    communicator_ = nullptr;
  }
  ncclComm* operator->() const { return communicator_; }

 private:
  ncclComm* communicator_;
};

// A group of calls on a stream. Each copy of one that has not begun is another such group.
class CallGroup {
 public:
  CallGroup(ncclComm* communicator, std::vector<NcclCall> calls)
      : passage_(communicator), calls_(std::move(calls)) {}

  // Until true.
  bool operator()() {
    if (!has_begun_) passage_->clique.Begin(passage_->rank, calls_);
    has_begun_ = true;
    const bool is_done = passage_->clique.IsDone(passage_->rank);
    if (is_done) passage_.End();
    return is_done;
  }

 private:
  Passage passage_;
  std::vector<NcclCall> calls_;
  bool has_begun_ = false;
};

// The calls of this thread from its outermost ncclGroupStart on.
struct OpenGroup {
  int depth = 0;
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<NcclCall> calls;
};
thread_local OpenGroup open_group;

ncclResult_t Put(const NcclCall& call, ncclComm_t handle, cudaStream_t stream) {
  const ncclComm& communicator = Find(handle);
  if (const ncclResult_t failure = TheLibrary().failure; failure != ncclSuccess) return failure;
  const char* const name = NameOf(call.kind);
  CheckOnCurrentCard(stream, name);
  Check(communicator.card == CurrentCard(),
        "%s for a communicator of card %d while card %d is current", name, communicator.card,
        CurrentCard());
  CheckCall(call, communicator.rank, communicator.size);
  ncclGroupStart();
  OpenGroup& group = open_group;
  Check(group.calls.empty() || (group.communicator == handle && group.stream == stream),
        "%s: a group of calls for several communicators or streams is not emulated", name);
  group.communicator = handle;
  group.stream = stream;
  group.calls.push_back(call);
  return ncclGroupEnd();
}

const std::byte* Bytes(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* Bytes(void* data) { return static_cast<std::byte*>(data); }

// To those that a group exchanges its first message with.
void ConnectPeers(absl::Span<const NcclCall> calls, const ncclComm& communicator) {
  NcclClique& clique = communicator.clique;
  const int rank = communicator.rank;
  std::vector<int> peers;
  for (const NcclCall& call : calls) {
    const bool is_message =
        call.kind == NcclCall::Kind::kSend || call.kind == NcclCall::Kind::kReceive;
    if (is_message && !clique.HaveMet(rank, call.peer)) peers.push_back(call.peer);
  }
  if (peers.empty()) return;
  for (int peer : peers) clique.Meet(rank, peer);
  WakeWaiting();
  WorkUntil([&] {
    return std::all_of(peers.begin(), peers.end(),
                       [&](int peer) { return clique.HaveMet(rank, peer); });
  });
}

std::string BytesOf(const ncclUniqueId& id) { return {id.internal, sizeof(id.internal)}; }

NcclClique& FindClique(const std::string& id) {
  Library& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  const auto found = library.cliques.find(id);
  Check(found != library.cliques.end(),
        "ncclCommInitRank: the id is none of ncclGetUniqueId's, or its ranks have left");
  return found->second;
}

}  // namespace

void FailNccl(ncclResult_t result) { TheLibrary().failure = result; }

size_t NcclCommunicators() {
  const std::lock_guard lock(TheLibrary().mutex);
  return TheLibrary().communicators.size();
}

}  // namespace twinstream::gpu

using namespace twinstream::gpu;  // NOLINT: what follows is NCCL's, in no namespace
using twinstream::Check;

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(TheLibrary().mutex);
  const uint64_t number = ++TheLibrary().ids;
  // All bytes of it: whoever loses some has another id.
  for (size_t i = 0; i < sizeof(id->internal); i += sizeof(number)) {
    std::memcpy(id->internal + i, &number, sizeof(number));
  }
  TheLibrary().cliques.try_emplace(BytesOf(*id));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int size, ncclUniqueId id, int rank) {
  Check(open_group.depth == 0, "ncclCommInitRank in a group of calls is not emulated");
  Check(rank >= 0 && rank < size, "ncclCommInitRank: rank %d of %d", rank, size);
  NcclClique& clique = FindClique(BytesOf(id));
  clique.Join(rank, size, CurrentCard());
  WakeWaiting();
  WorkUntil([&] { return clique.IsComplete(); });
  std::unique_ptr<ncclComm> made(new ncclComm{
      .id = BytesOf(id), .clique = clique, .rank = rank, .size = size, .card = CurrentCard()});
  *communicator = made.get();
  const std::lock_guard lock(TheLibrary().mutex);
  TheLibrary().communicators[*communicator] = std::move(made);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  if (communicator == nullptr) return ncclSuccess;
  Check(open_group.depth == 0, "ncclCommDestroy in a group of calls is not emulated");
  const ncclComm& leaving = Find(communicator);
  Check(leaving.groups == 0,
        "ncclCommDestroy on rank %d while calls of the communicator are under way or in a graph",
        leaving.rank);
  const std::lock_guard lock(TheLibrary().mutex);
  if (leaving.clique.Leave()) TheLibrary().cliques.erase(leaving.id);
  TheLibrary().communicators.erase(communicator);
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  Find(communicator);
  *error = TheLibrary().failure;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

// NCCL ignores the communicator, and says nothing where nothing has failed.
const char* ncclGetLastError(ncclComm_t /*communicator*/) {
  return TheLibrary().failure == ncclSuccess ? "" : "FailNccl was called";
}

ncclResult_t ncclGroupStart() {
  ++open_group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  OpenGroup& group = open_group;
  Check(group.depth > 0, "ncclGroupEnd without ncclGroupStart");
  --group.depth;
  if (group.depth > 0 || group.calls.empty()) return ncclSuccess;
  std::vector<NcclCall> calls = std::exchange(group.calls, {});
  ncclComm& communicator = Find(group.communicator);
  CheckGroup(calls, communicator.rank, communicator.size);
  ConnectPeers(calls, communicator);
  IssueAwaiting(group.stream, CallGroup(&communicator, std::move(calls)));
  return ncclSuccess;
}

// NOLINTBEGIN(readability-function-size): NCCL's parameters
ncclResult_t ncclAllReduce(const void* sent, void* received, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t communicator, cudaStream_t stream) {
  return Put({.kind = NcclCall::Kind::kAllReduce,
              .sent = Bytes(sent),
              .received = Bytes(received),
              .count = count,
              .type = type,
              .reduction = reduction},
             communicator, stream);
}

ncclResult_t ncclAllGather(const void* sent, void* received, size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  return Put({.kind = NcclCall::Kind::kAllGather,
              .sent = Bytes(sent),
              .received = Bytes(received),
              .count = count,
              .type = type},
             communicator, stream);
}

ncclResult_t ncclReduceScatter(const void* sent, void* received, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t communicator,
                               cudaStream_t stream) {
  return Put({.kind = NcclCall::Kind::kReduceScatter,
              .sent = Bytes(sent),
              .received = Bytes(received),
              .count = count,
              .type = type,
              .reduction = reduction},
             communicator, stream);
}

ncclResult_t ncclReduce(const void* sent, void* received, size_t count, ncclDataType_t type,
                        ncclRedOp_t reduction, int root, ncclComm_t communicator,
                        cudaStream_t stream) {
  return Put({.kind = NcclCall::Kind::kReduce,
              .sent = Bytes(sent),
              .received = Bytes(received),
              .count = count,
              .type = type,
              .reduction = reduction,
              .peer = root},
             communicator, stream);
}

ncclResult_t ncclBroadcast(const void* sent, void* received, size_t count, ncclDataType_t type,
                           int root, ncclComm_t communicator, cudaStream_t stream) {
  return Put({.kind = NcclCall::Kind::kBroadcast,
              .sent = Bytes(sent),
              .received = Bytes(received),
              .count = count,
              .type = type,
              .peer = root},
             communicator, stream);
}

ncclResult_t ncclSend(const void* sent, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return Put({.kind = NcclCall::Kind::kSend,
              .sent = Bytes(sent),
              .count = count,
              .type = type,
              .peer = peer},
             communicator, stream);
}

ncclResult_t ncclRecv(void* received, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return Put({.kind = NcclCall::Kind::kReceive,
              .received = Bytes(received),
              .count = count,
              .type = type,
              .peer = peer},
             communicator, stream);
}
// NOLINTEND(readability-function-size)
