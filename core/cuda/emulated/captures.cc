#include "core/cuda/emulated/captures.h"

#include <memory>
#include <utility>

#include "core/check.h"
#include "core/cuda/emulated/runtime.h"
#include "core/cuda/emulated/streams.h"

struct CUgraph_st {
  twinstream::gpu::Graph graph;
};
struct CUgraphExec_st {
  int card = 0;
  twinstream::gpu::Graph graph;
};

namespace twinstream::gpu {
namespace {

// The calling thread's; null: it captures nothing.
thread_local Capture* captured = nullptr;

using Marks = std::vector<Mark>;

Marks MarksFor(size_t count) {
  Marks marks;
  for (size_t i = 0; i < count; ++i) marks.push_back(TheRuntime().NewMark());
  return marks;
}

Marks At(const Marks& marks, const CapturedPoint& point) {
  Marks at;
  for (size_t node : point) at.push_back(marks[node]);
  return at;
}

// Once all of `awaited` have happened does the work, a copy of the node's, and then `done` happens.
Advance RunOf(const Graph::Node& node, Marks awaited, Mark done) {
  return [advance = node.advance, awaited = std::move(awaited), done] {
    {
      const std::lock_guard lock(TheRuntime().mutex);
      for (Mark mark : awaited) {
        if (!TheRuntime().HasHappened(mark)) return false;
      }
    }
    if (!advance()) return false;
    const std::lock_guard lock(TheRuntime().mutex);
    TheRuntime().awaited_marks.erase(done);
    return true;
  };
}

// Each launch begins its work anew. Branches go on as streams do: side by side, after what the
// stream was given before, and what it is given later comes after them.
void Launch(const Graph& graph, CUstream_st& stream) {
  const Graph::Node nothing = {.advance = [] { return true; }};
  const Marks done = MarksFor(graph.nodes.size());
  std::vector<CUstream_st*> branches = {&stream};
  const bool has_branches = graph.branches > 1;
  const Mark begun = has_branches ? TheRuntime().NewMark() : 0;
  if (has_branches) Append(stream, RunOf(nothing, {}, begun));
  while (branches.size() < graph.branches) {
    branches.push_back(&MakePassingStream(stream.card));
    Append(*branches.back(), RunOf(nothing, {begun}, TheRuntime().NewMark()));
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Graph::Node& node = graph.nodes[i];
    Append(*branches[node.branch], RunOf(node, At(done, node.after), done[i]));
  }
  if (has_branches) {
    Append(stream, RunOf(nothing, At(done, graph.end), TheRuntime().NewMark()));
  }
}

}  // namespace

void Capture::Begin(CUstream_st& stream) {
  Check(captured == nullptr, "this thread captures already");
  Check(stream.capture == nullptr, "another thread captures the stream already");
  captured = TheRuntime().captures.emplace_back(std::make_unique<Capture>()).get();
  stream.capture = captured;
  captured->Take(stream);
}

void Capture::Take(CUstream_st& stream) {
  stream.branch = streams_.size();
  streams_.push_back(&stream);
  reached_.emplace_back();
}

void Capture::CheckThread() const {
  Check(thread_ == std::this_thread::get_id(),
        "work of a capture on another thread than that which began it is not emulated");
}

void Capture::Add(const CUstream_st& stream, Advance advance) {
  CheckThread();
  CapturedPoint& reached = reached_[stream.branch];
  nodes_.push_back({.advance = std::move(advance), .branch = stream.branch, .after = reached});
  reached = {nodes_.size() - 1};
}

cudaError_t Capture::Record(const CUstream_st& stream, CapturedPoint* point) const {
  CheckThread();
  if (is_broken_) return cudaErrorStreamCaptureInvalidated;
  *point = reached_[stream.branch];
  return cudaSuccess;
}

cudaError_t Capture::Wait(CUstream_st& stream, const CapturedPoint& point) {
  if (!is_open_) {  // what it captured is a graph's by now
    if (stream.capture == nullptr) return cudaErrorCapturedEvent;
    return stream.capture->Break(cudaErrorStreamCaptureIsolation);
  }
  CheckThread();
  if (is_broken_) return cudaErrorStreamCaptureInvalidated;
  if (stream.capture == nullptr) {
    stream.capture = this;
    Take(stream);
  }
  reached_[stream.branch].insert(point.begin(), point.end());
  return cudaSuccess;
}

cudaError_t Capture::Break(cudaError_t error) {
  is_broken_ = is_open_;
  return error;
}

// Whether the first stream has waited, directly or not, for every node of the others.
bool Capture::IsJoined() const {
  CapturedPoint awaited = reached_[0];
  for (const Graph::Node& node : nodes_) awaited.insert(node.after.begin(), node.after.end());
  return awaited.size() == nodes_.size();
}

cudaError_t Capture::End(Graph* graph) {
  CheckThread();
  for (CUstream_st* stream : streams_) stream->capture = nullptr;
  captured = nullptr;
  is_open_ = false;
  const bool is_joined = IsJoined();
  *graph = {.nodes = std::move(nodes_), .branches = streams_.size(), .end = std::move(reached_[0])};
  if (is_broken_) return cudaErrorStreamCaptureInvalidated;
  return is_joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}

bool IsCapturing() { return captured != nullptr; }

cudaError_t CaptureForbidsIt() {
  const std::lock_guard lock(TheRuntime().mutex);
  return Failed(captured->Break(cudaErrorStreamCaptureUnsupported));
}

}  // namespace twinstream::gpu

using namespace twinstream::gpu;  // NOLINT: what follows is CUDA's, in no namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  twinstream::Check(mode == cudaStreamCaptureModeThreadLocal, "another mode of capture");
  const std::lock_guard lock(TheRuntime().mutex);
  Capture::Begin(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(TheRuntime().mutex);
  *status = stream->capture == nullptr     ? cudaStreamCaptureStatusNone
            : stream->capture->is_broken() ? cudaStreamCaptureStatusInvalidated
                                           : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(TheRuntime().mutex);
  twinstream::Check(stream->capture != nullptr && stream->branch == 0,
                    "a capture ends on a stream that it has not begun on");
  auto captured_graph = std::make_unique<CUgraph_st>();
  const cudaError_t error = stream->capture->End(&captured_graph->graph);
  *graph = error == cudaSuccess ? captured_graph.release() : nullptr;
  return Failed(error);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {  // NOLINT(google-runtime-int)
  twinstream::Check(flags == 0, "cudaGraphInstantiate with the flags %d", flags);
  *exec = new CUgraphExec_st{.card = CurrentCard(), .graph = graph->graph};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (exec->card != stream->card) return Failed(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(TheRuntime().mutex);
  twinstream::Check(stream->capture == nullptr, "a capture of a graph's launch is not emulated");
  Launch(exec->graph, *stream);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
